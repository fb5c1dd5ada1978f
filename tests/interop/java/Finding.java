import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages by id and by key. */
final class Finding {
    private Finding() {}

    static void addTo(Map<String, Interop.Scenario> scenarios) {
        scenarios.put("find_by_offset_id", Finding::byOffsetId);
        scenarios.put("find_by_unique_id", Finding::byUniqueId);
        scenarios.put("find_by_key", Finding::byKey);
    }

    private static void byOffsetId() throws Exception {
        String topic = Interop.fresh("byOffsetId");
        SendResult sent = Sending.send(topic, "I", 3).get(1);
        DefaultMQProducer producer = Sending.producer("byOffsetId");
        MessageExt found = producer.viewMessage(topic, sent.getOffsetMsgId());
        Interop.equal("body", "I1", new String(found.getBody(), UTF_8));
        producer.shutdown();
    }

    private static void byUniqueId() throws Exception {
        String topic = Interop.fresh("byUniqueId");
        SendResult sent = Sending.send(topic, "U", 3).get(2);
        DefaultMQProducer producer = Sending.producer("byUniqueId");
        Interop.until(
                "the index has it",
                () -> {
                    try {
                        return new String(producer.viewMessage(topic, sent.getMsgId()).getBody(), UTF_8)
                                .equals("U2");
                    } catch (Exception error) {
                        return false;
                    }
                });
        producer.shutdown();
    }

    private static void byKey() throws Exception {
        String topic = Interop.fresh("byKey");
        DefaultMQProducer producer = Sending.producer("byKey");
        long begin = System.currentTimeMillis() - 60_000;
        for (int index = 0; index < 20; index++) {
            producer.send(new Message(topic, "T", index % 2 == 0 ? "order even" : "odd", Sending.bytes("k" + index)));
        }
        Interop.until(
                "the index has them",
                () -> {
                    try {
                        return query(producer, topic, "order", 64, begin).size() == 10;
                    } catch (Exception error) {
                        return false;
                    }
                });
        Interop.equal("one word of several", 10, query(producer, topic, "even", 64, begin).size());
        Interop.equal("no more than asked for", 4, query(producer, topic, "odd", 4, begin).size());
        try {
            query(producer, topic, "none", 4, begin);
            throw new AssertionError("something was found");
        } catch (MQClientException error) {
            Interop.equal("code", 208, error.getResponseCode());
        }
        producer.shutdown();
    }

    private static List<MessageExt> query(
            DefaultMQProducer producer, String topic, String key, int count, long begin) throws Exception {
        QueryResult result = producer.queryMessage(topic, key, count, begin, System.currentTimeMillis() + 60_000);
        return result.getMessageList();
    }
}
