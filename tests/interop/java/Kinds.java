import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that come later, come again, or end as dead letters. */
final class Kinds {
    private Kinds() {}

    static void addTo(Map<String, Interop.Scenario> scenarios) {
        scenarios.put("delayed_by_level", Kinds::delayed);
        scenarios.put("retried_until_consumed", Kinds::retried);
        scenarios.put("dead_after_too_many_retries", Kinds::dead);
        scenarios.put("dead_when_an_ordered_consumer_gives_up", Kinds::deadInOrder);
    }

    private static void delayed() throws Exception {
        String topic = Interop.fresh("delayed");
        DefaultMQProducer producer = Sending.producer("delayed");
        List<String> received = Consuming.list();
        producer.send(new Message(topic, Sending.bytes("first")));
        DefaultMQPushConsumer consumer = Consuming.collect("delayed", "", received);
        consumer.subscribe(topic, "*");
        consumer.start();
        Interop.until("the first", () -> received.contains("first"));
        Message message = new Message(topic, Sending.bytes("later"));
        message.setDelayTimeLevel(2);
        long sent = System.currentTimeMillis();
        producer.send(message);
        Interop.until("the delayed one", () -> received.contains("later"));
        long waited = System.currentTimeMillis() - sent;
        Interop.holds("five seconds, not " + waited + " ms", waited >= 4_990 && waited < 8_000);
        Interop.equal("count", 2, received.size());
        consumer.shutdown();
        producer.shutdown();
    }

    /** Refuse each message so many times, to get it again a second later; note bodies and retries. */
    private static DefaultMQPushConsumer refuse(String group, int times, List<String> seen) throws Exception {
        DefaultMQPushConsumer consumer = Consuming.pushConsumer(group, "");
        consumer.registerMessageListener(
                (MessageListenerConcurrently)
                        (messages, context) -> {
                            MessageExt message = messages.get(0);
                            seen.add(new String(message.getBody(), UTF_8) + message.getReconsumeTimes());
                            context.setDelayLevelWhenNextConsume(1);
                            return message.getReconsumeTimes() < times
                                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                        });
        return consumer;
    }

    private static void retried() throws Exception {
        String topic = Interop.fresh("retried");
        Sending.send(topic, "m", 1);
        List<String> seen = Consuming.list();
        DefaultMQPushConsumer consumer = refuse("retried", 2, seen);
        consumer.subscribe(topic, "*");
        consumer.start();
        Interop.until("two more attempts", () -> seen.size() >= 3);
        Interop.equal("attempts", List.of("m00", "m01", "m02"), List.copyOf(seen));
        consumer.shutdown();
    }

    private static void dead() throws Exception {
        String topic = Interop.fresh("dead");
        Sending.send(topic, "d", 1);
        List<String> seen = Consuming.list();
        DefaultMQPushConsumer consumer = refuse("dead", 99, seen);
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe(topic, "*");
        consumer.start();
        untilDeadLetter(consumer.getConsumerGroup());
        Interop.equal("attempts", List.of("d00", "d01"), List.copyOf(seen));
        consumer.shutdown();
    }

    private static void untilDeadLetter(String group) throws Exception {
        AtomicInteger letters = new AtomicInteger();
        Administration.admin(
                admin ->
                        Interop.until(
                                "a dead letter",
                                () -> {
                                    try {
                                        admin.examineTopicStats("%DLQ%" + group)
                                                .getOffsetTable()
                                                .values()
                                                .forEach(each -> letters.addAndGet((int) each.getMaxOffset()));
                                    } catch (Exception error) {
                                        return false;
                                    }
                                    return letters.get() > 0;
                                }));
    }

    private static void deadInOrder() throws Exception {
        String topic = Interop.fresh("deadInOrder");
        Administration.createTopic(topic, 1);
        Sending.send(topic, "o", 2);
        List<String> seen = Consuming.list();
        DefaultMQPushConsumer consumer = Consuming.pushConsumer("deadInOrder", "");
        consumer.setMaxReconsumeTimes(1);
        consumer.setSuspendCurrentQueueTimeMillis(10);
        consumer.registerMessageListener(
                (MessageListenerOrderly)
                        (messages, context) -> {
                            String body = new String(messages.get(0).getBody(), UTF_8);
                            seen.add(body + messages.get(0).getReconsumeTimes());
                            return body.equals("o0")
                                    ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                                    : ConsumeOrderlyStatus.SUCCESS;
                        });
        consumer.subscribe(topic, "*");
        consumer.start();
        untilDeadLetter(consumer.getConsumerGroup());
        Interop.until("the next", () -> seen.contains("o10"));
        Interop.equal("attempts", List.of("o00", "o01", "o10"), List.copyOf(seen));
        consumer.shutdown();
    }
}
