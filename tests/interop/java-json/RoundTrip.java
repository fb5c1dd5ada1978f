import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.RegisterBrokerBody;

/**
 * Reads bodies with Apache's own classes and writes them again.
 *
 * <p>A line of input is a class name and a body in base64. The answer is a line with the body as
 * Apache writes it, in base64, or one that begins with "!" and says what went wrong. The class name
 * "compressed" is a registration in its compressed form.
 */
public final class RoundTrip {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        // The libraries print to stdout too.
        PrintStream answers = System.out;
        System.setOut(System.err);
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split(" ");
            answers.println(roundTrip(words[0], Base64.getDecoder().decode(words[1])));
        }
        answers.flush();
    }

    private static String roundTrip(String name, byte[] body) {
        try {
            if (name.equals("compressed")) {
                RegisterBrokerBody read =
                        RegisterBrokerBody.decode(body, true, MQVersion.Version.V5_0_0);
                return Base64.getEncoder().encodeToString(read.encode(true));
            }
            Object value = RemotingSerializable.decode(body, Class.forName(name));
            return Base64.getEncoder().encodeToString(RemotingSerializable.encode(value));
        } catch (Throwable error) {
            return "! " + String.valueOf(error).replace('\n', ' ');
        }
    }
}
