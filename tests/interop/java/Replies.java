import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests, and the replies to them. */
final class Replies {
    private Replies() {}

    static void addTo(Map<String, Interop.Scenario> scenarios) {
        scenarios.put("request_is_replied_to", Replies::replied);
        scenarios.put("request_without_a_reply", Replies::notReplied);
    }

    /** Consume requests, and reply to each with its own body twice. */
    private static DefaultMQPushConsumer echo(String topic, DefaultMQProducer producer, List<Object> outcomes)
            throws Exception {
        DefaultMQPushConsumer consumer = Consuming.pushConsumer(topic, "");
        consumer.registerMessageListener(
                (MessageListenerConcurrently)
                        (messages, context) -> {
                            for (MessageExt request : messages) {
                                String text = new String(request.getBody(), UTF_8);
                                try {
                                    Message reply =
                                            MessageUtil.createReplyMessage(request, Sending.bytes(text + text));
                                    SendResult result = producer.send(reply, 10_000);
                                    outcomes.add(result.getSendStatus());
                                } catch (Exception error) {
                                    outcomes.add(error);
                                }
                            }
                            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                        });
        consumer.subscribe(topic, "*");
        consumer.start();
        return consumer;
    }

    private static void replied() throws Exception {
        String topic = Interop.fresh("replied");
        DefaultMQProducer asking = Sending.producer("asking");
        DefaultMQProducer replying = Sending.producer("replying");
        Sending.send(topic, "first", 1);
        List<Object> outcomes = new java.util.concurrent.CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = echo(topic, replying, outcomes);
        Interop.until("it consumes", () -> !outcomes.isEmpty());
        outcomes.clear();
        List<String> answers =
                IntStream.range(0, 10)
                        .mapToObj(
                                number -> {
                                    try {
                                        Message request = new Message(topic, Sending.bytes("m" + number));
                                        return new String(asking.request(request, 20_000).getBody(), UTF_8);
                                    } catch (Exception error) {
                                        throw new AssertionError(error);
                                    }
                                })
                        .toList();
        Interop.equal(
                "answers", IntStream.range(0, 10).mapToObj(n -> "m" + n + "m" + n).toList(), answers);
        Interop.until("all outcomes", () -> outcomes.size() >= 10);
        Interop.equal("outcomes", List.of(SendStatus.SEND_OK), outcomes.stream().distinct().toList());
        consumer.shutdown();
        asking.shutdown();
        replying.shutdown();
    }

    private static void notReplied() throws Exception {
        String topic = Interop.fresh("not_replied");
        DefaultMQProducer asking = Sending.producer("asking_nobody");
        try {
            asking.request(new Message(topic, Sending.bytes("anybody?")), 2_000);
            throw new AssertionError("somebody replied");
        } catch (RequestTimeoutException expected) {
            Interop.holds("its words: " + expected.getMessage(), expected.getMessage().contains("timeout"));
        }
        asking.shutdown();
    }
}
