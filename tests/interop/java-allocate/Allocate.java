import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Prints the queues that Apache's strategies give a member. Each line of input is "strategy own
 * members queues rest", with lists joined by commas and a queue as broker:id; each line of output is
 * such a list of queues. The rest is the rooms of the machine rooms, the queues of the config, or the
 * strategy within a room. For that one, a queue is in the room named by its broker's first letter, a
 * member in the room named by its own last letter.
 */
public final class Allocate {
    private Allocate() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split(" ", -1);
            List<String> members = new ArrayList<>(Arrays.asList(parts[2].split(",")));
            List<MessageQueue> queues = queues(parts[3]);
            Collections.sort(members);
            Collections.sort(queues);
            List<MessageQueue> given =
                    strategy(parts[0], parts[4]).allocate("g", parts[1], queues, members);
            Collections.sort(given);
            System.out.println(
                    given.stream()
                            .map(each -> each.getBrokerName() + ":" + each.getQueueId())
                            .collect(Collectors.joining(",")));
        }
    }

    private static AllocateMessageQueueStrategy strategy(String name, String rest) {
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            case "CONFIG":
                AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
                config.setMessageQueueList(queues(rest));
                return config;
            case "NEARBY":
                return new AllocateMachineRoomNearby(strategy(rest, ""), new Rooms());
            default:
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(Arrays.asList(rest.split(","))));
                return rooms;
        }
    }

    private static final class Rooms implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName().substring(0, 1);
        }

        @Override
        public String consumerDeployIn(String member) {
            return member.substring(member.length() - 1);
        }
    }

    private static List<MessageQueue> queues(String text) {
        List<MessageQueue> found = new ArrayList<>();
        for (String each : text.split(",")) {
            int colon = each.lastIndexOf(':');
            found.add(
                    new MessageQueue(
                            "T", each.substring(0, colon), Integer.parseInt(each.substring(colon + 1))));
        }
        return found;
    }
}
