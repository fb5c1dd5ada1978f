import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Compiles SQL92 expressions with Apache's own classes and evaluates them.
 *
 * <p>A line of input is an expression and any number of property maps, all in base64; a map is
 * {@code name 0x01 value 0x02} repeated. The answer is "!" for an expression that is refused, or a
 * letter for each map: T, F, N for null, E for an exception, ? for anything else.
 */
public final class Evaluate {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        // The libraries print to stdout too.
        PrintStream answers = System.out;
        System.setOut(System.err);
        for (String line; (line = lines.readLine()) != null; ) {
            answers.println(answer(line.split(" ", -1)));
        }
        answers.flush();
    }

    private static String answer(String[] words) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text(words[0]));
        } catch (Throwable error) {
            return "!";
        }
        StringBuilder outcomes = new StringBuilder();
        for (int i = 1; i < words.length; i++) {
            outcomes.append(outcome(expression, properties(text(words[i]))));
        }
        return outcomes.toString();
    }

    private static char outcome(Expression expression, Map<String, String> properties) {
        Object value;
        try {
            value = expression.evaluate(new Context(properties));
        } catch (Throwable error) {
            return 'E';
        }
        if (value == null) {
            return 'N';
        }
        if (value instanceof Boolean) {
            return (Boolean) value ? 'T' : 'F';
        }
        return '?';
    }

    private static String text(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }

    private static Map<String, String> properties(String text) {
        Map<String, String> found = new HashMap<>();
        for (String pair : text.split("\u0002")) {
            int end = pair.indexOf('\u0001');
            if (end > 0) {
                found.put(pair.substring(0, end), pair.substring(end + 1));
            }
        }
        return found;
    }

    /** The properties, as a broker gives them to an expression. */
    private static final class Context implements EvaluationContext {
        private final Map<String, String> properties;

        Context(Map<String, String> properties) {
            this.properties = properties;
        }

        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return new HashMap<>(properties);
        }
    }
}
