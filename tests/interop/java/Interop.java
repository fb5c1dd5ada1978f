import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BooleanSupplier;

/**
 * What a program written for RocketMQ does, as scenarios with names.
 *
 * <p>Arguments: the name server's address, then the names of scenarios; none for all; --list instead
 * of an address lists them. Each scenario prints one line: "PASS name" or "FAIL name reason".
 */
public final class Interop {
    interface Scenario {
        void run() throws Exception;
    }

    static String nameserver;
    static final Map<String, Scenario> SCENARIOS = new LinkedHashMap<>();
    private static final long PATIENCE_MS = 30_000;
    private static final String RUN = Long.toString(System.nanoTime(), 36);

    private Interop() {}

    public static void main(String[] arguments) {
        // Otherwise members of a group look for changes every 20 s.
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        // A second after its start a client sends a heartbeat and, by default, shares queues for the first time. If
        // the two coincide, it does not send the new version of its subscription until the next heartbeat, 30 s later.
        System.setProperty("rocketmq.client.rebalance.minInterval", "100");
        Sending.addTo(SCENARIOS);
        Consuming.addTo(SCENARIOS);
        Finding.addTo(SCENARIOS);
        Kinds.addTo(SCENARIOS);
        Transactions.addTo(SCENARIOS);
        Replies.addTo(SCENARIOS);
        Traces.addTo(SCENARIOS);
        Administration.addTo(SCENARIOS);
        if (arguments[0].equals("--list")) {
            SCENARIOS.keySet().forEach(System.out::println);
            return;
        }
        nameserver = arguments[0];
        List<String> chosen = new ArrayList<>(List.of(arguments).subList(1, arguments.length));
        boolean failed = false;
        for (String name : chosen.isEmpty() ? SCENARIOS.keySet() : chosen) {
            try {
                SCENARIOS.get(name).run();
                System.out.println("PASS " + name);
            } catch (Throwable error) {
                failed = true;
                StackTraceElement where = error.getStackTrace()[0];
                for (StackTraceElement each : error.getStackTrace()) {
                    if (each.getFileName() != null && SOURCES.contains(each.getFileName())) {
                        where = each;
                        break;
                    }
                }
                System.out.println(("FAIL " + name + " " + error + " at " + where).replace('\n', ' '));
            }
        }
        System.exit(failed ? 1 : 0);
    }

    private static final Set<String> SOURCES =
            Set.of(
                    "Sending.java",
                    "Consuming.java",
                    "Finding.java",
                    "Kinds.java",
                    "Transactions.java",
                    "Replies.java",
                    "Traces.java",
                    "Administration.java");

    /** A name that no earlier run has used. */
    static String fresh(String what) {
        return what + "_" + RUN;
    }

    /** Wait until the condition holds, or fail and say what never happened. */
    static void until(String what, BooleanSupplier holds) throws InterruptedException {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!holds.getAsBoolean()) {
            if (System.currentTimeMillis() > end) {
                throw new AssertionError("never: " + what);
            }
            Thread.sleep(10);
        }
    }

    static void equal(String what, Object wanted, Object found) {
        if (!wanted.equals(found)) {
            throw new AssertionError(what + ": " + found + ", not " + wanted);
        }
    }

    static void holds(String what, boolean condition) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    static Set<String> newSet() {
        return ConcurrentHashMap.newKeySet();
    }
}
