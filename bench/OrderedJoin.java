import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * How long the official client's ordered consumer takes to its first message of an idle queue, with its own settings:
 * "begins milliseconds" from its start, and "takes_over milliseconds" from when the queue's holder has left. Arguments:
 * name server, rounds, a prefix of topics with one queue each, named PREFIX0 and so on, two a round.
 */
public final class OrderedJoin {
    private static final long JOINED_MS = 3_000;
    private static final long PATIENCE_S = 60;

    private OrderedJoin() {}

    public static void main(String[] arguments) throws Exception {
        String nameserver = arguments[0];
        int rounds = Integer.parseInt(arguments[1]);
        String prefix = arguments[2];
        DefaultMQProducer producer = new DefaultMQProducer("ordered-join");
        producer.setNamesrvAddr(nameserver);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        for (int round = 0; round < rounds; round++) {
            begins(producer, nameserver, prefix + 2 * round);
            takesOver(producer, nameserver, prefix + (2 * round + 1));
        }
        System.exit(0);
    }

    private static DefaultMQPushConsumer consumer(
            String nameserver, String topic, String member, CountDownLatch come) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "-group");
        consumer.setNamesrvAddr(nameserver);
        consumer.setInstanceName(topic + member);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(
                (MessageListenerOrderly)
                        (messages, context) -> {
                            come.countDown();
                            return ConsumeOrderlyStatus.SUCCESS;
                        });
        return consumer;
    }

    private static void send(DefaultMQProducer producer, String topic) throws Exception {
        producer.send(new Message(topic, new byte[1]), new MessageQueue(topic, "broker-a", 0));
    }

    private static void tell(String what, long begun, CountDownLatch come) throws Exception {
        if (!come.await(PATIENCE_S, TimeUnit.SECONDS)) {
            throw new AssertionError(what + ": nothing came");
        }
        System.out.printf("%s %.1f%n", what, (System.nanoTime() - begun) / 1e6);
    }

    private static void begins(DefaultMQProducer producer, String nameserver, String topic) throws Exception {
        send(producer, topic);
        CountDownLatch come = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(nameserver, topic, "", come);
        long begun = System.nanoTime();
        consumer.start();
        tell("begins", begun, come);
        consumer.shutdown();
    }

    /** The holder comes first by its name, so that the only queue is its own. */
    private static void takesOver(DefaultMQProducer producer, String nameserver, String topic) throws Exception {
        send(producer, topic);
        CountDownLatch first = new CountDownLatch(1);
        CountDownLatch second = new CountDownLatch(1);
        DefaultMQPushConsumer holder = consumer(nameserver, topic, "a", first);
        DefaultMQPushConsumer waiting = consumer(nameserver, topic, "b", second);
        holder.start();
        first.await(PATIENCE_S, TimeUnit.SECONDS);
        waiting.start();
        Thread.sleep(JOINED_MS);
        holder.shutdown();
        long begun = System.nanoTime();
        send(producer, topic);
        tell("takes_over", begun, second);
        waiting.shutdown();
    }
}
