import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Base64;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs a command of mqadmin for each line of the input; answers with what it printed, in base64. */
public final class MqAdmin {
    private MqAdmin() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            System.setOut(new PrintStream(printed, true));
            System.setErr(System.out);
            MQAdminStartup.main0(line.split(" "), null);
            System.out.flush();
            answers.println(Base64.getEncoder().encodeToString(printed.toByteArray()));
            answers.flush();
        }
        System.exit(0);
    }
}
