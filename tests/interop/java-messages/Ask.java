import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;

/**
 * Reads messages, properties and ids with Apache's own classes.
 *
 * <p>A line of input is a question and its bytes in base64. The answer is a line of words, with
 * texts and bytes in base64 after "=", or one that begins with "!" and says what went wrong.
 */
public final class Ask {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        // The libraries print to stdout too.
        PrintStream answers = System.out;
        System.setOut(System.err);
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split(" ");
            byte[] bytes = words.length == 1 ? new byte[0] : Base64.getDecoder().decode(words[1]);
            try {
                answers.println(answer(words[0], bytes).trim());
            } catch (Throwable error) {
                answers.println("! " + String.valueOf(error).replace('\n', ' '));
            }
        }
        answers.flush();
    }

    private static String answer(String question, byte[] bytes) throws Exception {
        String text = new String(bytes, StandardCharsets.UTF_8);
        switch (question) {
            case "record":
                return record(MessageDecoder.decode(ByteBuffer.wrap(bytes), true, true, true, false, true));
            case "properties":
                return properties(MessageDecoder.string2messageProperties(text));
            case "batch":
                StringBuilder items = new StringBuilder();
                for (Message item : MessageDecoder.decodeMessages(ByteBuffer.wrap(bytes))) {
                    items.append(item.getFlag()).append(' ').append(packed(item.getBody())).append(' ');
                    items.append(properties(item.getProperties())).append("; ");
                }
                return items.toString();
            case "hash":
                return String.valueOf(new String(bytes, StandardCharsets.UTF_16BE).hashCode());
            case "offset-id":
                MessageId id = MessageDecoder.decodeMessageId(text);
                return host(id.getAddress()) + " " + id.getOffset();
            case "record-crc":
                ByteBuffer property = ByteBuffer.allocate(20);
                MessageDecoder.createCrc32(property, Integer.parseInt(text));
                return packed(property.array());
            case "made":
                return String.valueOf(MessageClientIDSetter.getNearlyTimeFromID(text).getTime());
            default:
                throw new IllegalArgumentException(question);
        }
    }

    private static String record(MessageExt message) {
        return message.getQueueId()
                + " " + message.getFlag()
                + " " + message.getQueueOffset()
                + " " + message.getCommitLogOffset()
                + " " + message.getBornTimestamp()
                + " " + host(message.getBornHost())
                + " " + message.getStoreTimestamp()
                + " " + host(message.getStoreHost())
                + " " + message.getReconsumeTimes()
                + " " + message.getPreparedTransactionOffset()
                + " " + packed(message.getBody() == null ? new byte[0] : message.getBody())
                + " " + packed(message.getTopic().getBytes(StandardCharsets.UTF_8))
                + " " + message.getMsgId()
                + " " + properties(message.getProperties());
    }

    private static String host(SocketAddress address) {
        InetSocketAddress internet = (InetSocketAddress) address;
        return packed(internet.getAddress().getAddress()) + " " + internet.getPort();
    }

    private static String properties(Map<String, String> properties) {
        StringBuilder pairs = new StringBuilder();
        for (Map.Entry<String, String> pair : new TreeMap<>(properties).entrySet()) {
            pairs.append(packed(pair.getKey().getBytes(StandardCharsets.UTF_8))).append(':');
            pairs.append(packed(pair.getValue().getBytes(StandardCharsets.UTF_8))).append(' ');
        }
        return pairs.toString().trim();
    }

    private static String packed(byte[] bytes) {
        return "=" + Base64.getEncoder().encodeToString(bytes);
    }
}
