import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Clients that trace what they do. They print a line "TRACED what id producer-group consumer-group" for each message,
 * from which a reader of traces can start.
 */
final class Traces {
    private Traces() {}

    static void addTo(Map<String, Interop.Scenario> scenarios) {
        scenarios.put("traces_are_written", Traces::written);
    }

    private static void written() throws Exception {
        String topic = Interop.fresh("traced");
        Administration.createTopic(topic, 1);
        List<String> received = Consuming.list();
        DefaultMQPushConsumer consumer = consumer(topic, received);
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer(Interop.fresh("traced"), true, null);
        TransactionMQProducer teller =
                new TransactionMQProducer(Interop.fresh("traced_transactions"), null, true, null);
        teller.setTransactionListener(committing());
        for (DefaultMQProducer each : List.of(producer, teller)) {
            each.setNamesrvAddr(Interop.nameserver);
            each.setInstanceName(each.getProducerGroup());
            each.start();
        }
        Message later = new Message(topic, "tag", "key-later", Sending.bytes("later"));
        later.setDelayTimeLevel(1);
        SendResult first = producer.send(new Message(topic, "tag", "key-first", Sending.bytes("first")));
        SendResult delayed = producer.send(later);
        SendResult told =
                teller.sendMessageInTransaction(new Message(topic, "tag", "key-told", Sending.bytes("told")), null);
        Interop.until("all of them, one twice", () -> received.size() >= 4);
        print("first", first, producer, consumer);
        print("later", delayed, producer, consumer);
        print("told", told, teller, consumer);
        producer.shutdown();
        teller.shutdown();
        consumer.shutdown();
    }

    private static void print(
            String what, SendResult sent, DefaultMQProducer producer, DefaultMQPushConsumer consumer) {
        System.out.println(
                String.join(
                        " ", "TRACED", what, sent.getMsgId(), producer.getProducerGroup(), consumer.getConsumerGroup()));
    }

    /** A consumer that refuses the message "first" once. */
    private static DefaultMQPushConsumer consumer(String topic, List<String> received) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(Interop.fresh("tracing"), true, null);
        consumer.setNamesrvAddr(Interop.nameserver);
        consumer.setInstanceName(Interop.fresh("tracing"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(500);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(
                (MessageListenerConcurrently)
                        (messages, context) -> {
                            MessageExt message = messages.get(0);
                            String body = new String(message.getBody(), UTF_8);
                            received.add(body);
                            context.setDelayLevelWhenNextConsume(1);
                            return body.equals("first") && message.getReconsumeTimes() == 0
                                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                        });
        return consumer;
    }

    private static TransactionListener committing() {
        return new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        };
    }
}
