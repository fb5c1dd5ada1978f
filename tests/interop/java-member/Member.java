import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * A member of a group until its input ends. It prints "OWNS count" whenever the number of its queues
 * of the topic changes, and "GOT body" for each message. Arguments: name server, topic, group, and, if
 * it is to broadcast, the address for its client's id.
 */
public final class Member {
    private Member() {}

    public static void main(String[] arguments) throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        String topic = arguments[1];
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (arguments.length > 3) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
            consumer.setClientIP(arguments[3]);
        }
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(
                (MessageListenerConcurrently)
                        (messages, context) -> {
                            for (var each : messages) {
                                say("GOT " + new String(each.getBody(), StandardCharsets.UTF_8));
                            }
                            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                        });
        consumer.setAwaitTerminationMillisWhenShutdown(20_000); // So that all offsets are noted.
        consumer.start();
        Thread watch = new Thread(() -> watch(consumer, topic));
        watch.setDaemon(true);
        watch.start();
        while (System.in.read() >= 0) {}
        consumer.shutdown();
        System.exit(0);
    }

    private static void watch(DefaultMQPushConsumer consumer, String topic) {
        long known = -1;
        while (true) {
            long owned =
                    consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
                            .keySet().stream()
                            .filter(each -> each.getTopic().equals(topic))
                            .count();
            if (owned != known) {
                known = owned;
                say("OWNS " + owned);
            }
            try {
                Thread.sleep(50);
            } catch (InterruptedException end) {
                return;
            }
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
