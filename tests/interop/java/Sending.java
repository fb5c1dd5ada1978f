import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;
import org.apache.rocketmq.common.message.MessageQueue;

/** Producers. */
final class Sending {
    private Sending() {}

    static void addTo(Map<String, Interop.Scenario> scenarios) {
        scenarios.put("send_sync", Sending::sync);
        scenarios.put("send_async", Sending::async);
        scenarios.put("send_oneway", Sending::oneway);
        scenarios.put("send_batch", Sending::batch);
        scenarios.put("send_to_a_chosen_queue", Sending::chosenQueue);
        scenarios.put("send_round_robin_over_all_queues", Sending::roundRobin);
        scenarios.put("send_large_and_compressed", Sending::large);
        scenarios.put("send_too_large", Sending::tooLarge);
        scenarios.put("send_everything_a_message_has", Sending::everything);
        scenarios.put("send_in_a_namespace", Sending::namespace);
    }

    static DefaultMQProducer producer(String group) throws MQClientException {
        DefaultMQProducer producer = new DefaultMQProducer(Interop.fresh(group));
        producer.setNamesrvAddr(Interop.nameserver);
        producer.setInstanceName(Interop.fresh(group));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        return producer;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Send texts 0 to count - 1 under a tag. */
    static List<SendResult> send(String topic, String tag, int count) throws Exception {
        DefaultMQProducer producer = producer("feeder_" + topic);
        List<SendResult> results = new ArrayList<>();
        try {
            for (int index = 0; index < count; index++) {
                results.add(producer.send(new Message(topic, tag, tag + index, bytes(tag + index))));
            }
        } finally {
            producer.shutdown();
        }
        return results;
    }

    private static void sync() throws Exception {
        String topic = Interop.fresh("sync");
        for (SendResult result : send(topic, "T", 20)) {
            Interop.equal("status", SendStatus.SEND_OK, result.getSendStatus());
            Interop.equal("topic", topic, result.getMessageQueue().getTopic());
            MessageId id = MessageDecoder.decodeMessageId(result.getOffsetMsgId());
            Interop.holds("an offset id has an address", id.getAddress() != null);
            Interop.equal("region", "DefaultRegion", result.getRegionId());
            Interop.holds("a unique id", result.getMsgId().length() >= 32);
        }
    }

    private static void async() throws Exception {
        DefaultMQProducer producer = producer("async");
        String topic = Interop.fresh("async");
        int count = 500;
        CountDownLatch left = new CountDownLatch(count);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Set<String> places = Interop.newSet();
        producer.send(new Message(topic, bytes("makes the topic")));
        for (int index = 0; index < count; index++) {
            producer.send(
                    new Message(topic, bytes("m" + index)),
                    new SendCallback() {
                        @Override
                        public void onSuccess(SendResult result) {
                            places.add(result.getMessageQueue().getQueueId() + ":" + result.getQueueOffset());
                            left.countDown();
                        }

                        @Override
                        public void onException(Throwable error) {
                            failure.set(error);
                            left.countDown();
                        }
                    });
        }
        Interop.holds("all are answered", left.await(30, TimeUnit.SECONDS));
        producer.shutdown();
        Interop.holds("none failed: " + failure.get(), failure.get() == null);
        Interop.equal("places", count, places.size());
    }

    private static void oneway() throws Exception {
        String topic = Interop.fresh("oneway");
        DefaultMQProducer producer = producer("oneway");
        MessageQueue queue = producer.send(new Message(topic, bytes("makes the topic"))).getMessageQueue();
        long before = producer.maxOffset(queue);
        for (int index = 0; index < 10; index++) {
            producer.sendOneway(new Message(topic, bytes("m" + index)), queue);
        }
        Interop.until("ten one-way messages", () -> maxOffset(producer, queue) == before + 10);
        producer.shutdown();
    }

    static long maxOffset(DefaultMQProducer producer, MessageQueue queue) {
        try {
            return producer.maxOffset(queue);
        } catch (MQClientException error) {
            throw new AssertionError(error);
        }
    }

    private static void batch() throws Exception {
        String topic = Interop.fresh("batch");
        DefaultMQProducer producer = producer("batch");
        List<Message> messages = new ArrayList<>();
        for (int index = 0; index < 32; index++) {
            messages.add(new Message(topic, "B", "key" + index, bytes("b" + index)));
        }
        SendResult result = producer.send(messages);
        Interop.equal("status", SendStatus.SEND_OK, result.getSendStatus());
        Interop.equal("ids", 32, result.getOffsetMsgId().split(",").length);
        Interop.until("32 offsets", () -> maxOffset(producer, result.getMessageQueue()) == 32);
        String last = result.getOffsetMsgId().split(",")[31];
        MessageExt found = producer.viewMessage(topic, last);
        Interop.equal("body", "b31", new String(found.getBody(), StandardCharsets.UTF_8));
        producer.shutdown();
    }

    private static void chosenQueue() throws Exception {
        String topic = Interop.fresh("chosen");
        DefaultMQProducer producer = producer("chosen");
        for (int index = 0; index < 12; index++) {
            SendResult result =
                    producer.send(
                            new Message(topic, bytes("m" + index)),
                            (queues, message, argument) -> queues.get((Integer) argument % queues.size()),
                            index % 3);
            Interop.equal("queue", index % 3, result.getMessageQueue().getQueueId());
            Interop.equal("offset", (long) index / 3, result.getQueueOffset());
        }
        producer.shutdown();
    }

    private static void roundRobin() throws Exception {
        String topic = Interop.fresh("robin");
        Set<Integer> queues = new HashSet<>();
        send(topic, "R", 16).forEach(result -> queues.add(result.getMessageQueue().getQueueId()));
        DefaultMQProducer producer = producer("robin");
        Interop.equal("queues", producer.fetchPublishMessageQueues(topic).size(), queues.size());
        producer.shutdown();
    }

    private static void large() throws Exception {
        String topic = Interop.fresh("large");
        byte[] body = new byte[3 << 20];
        Arrays.fill(body, (byte) 'x');
        DefaultMQProducer producer = producer("large");
        SendResult result = producer.send(new Message(topic, body));
        MessageExt found = producer.viewMessage(topic, result.getOffsetMsgId());
        Interop.holds("the body comes back whole", Arrays.equals(body, found.getBody()));
        Interop.holds("it was stored compressed", found.getStoreSize() < 1 << 20);
        producer.shutdown();
    }

    private static void tooLarge() throws Exception {
        DefaultMQProducer producer = producer("tooLarge");
        producer.setMaxMessageSize(64 << 20);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        try {
            producer.send(new Message(Interop.fresh("tooLarge"), new byte[5 << 20]));
            throw new AssertionError("a body of 5 MiB was taken");
        } catch (MQBrokerException error) {
            Interop.equal("code", 13, error.getResponseCode());
        } finally {
            producer.shutdown();
        }
    }

    private static void everything() throws Exception {
        String topic = Interop.fresh("everything");
        DefaultMQProducer producer = producer("everything");
        Message message = new Message(topic, "tag", "k1 k2", 7, bytes("body \u00e4\ud83d\ude00"), true);
        message.putUserProperty("color", "gr\u00fcn");
        message.setBuyerId("buyer");
        SendResult result = producer.send(message);
        MessageExt found = producer.viewMessage(topic, result.getOffsetMsgId());
        Interop.equal("flag", 7, found.getFlag());
        Interop.equal("tags", "tag", found.getTags());
        Interop.equal("keys", "k1 k2", found.getKeys());
        Interop.equal("property", "gr\u00fcn", found.getUserProperty("color"));
        Interop.equal("buyer", "buyer", found.getBuyerId());
        Interop.equal("body", "body \u00e4\ud83d\ude00", new String(found.getBody(), StandardCharsets.UTF_8));
        Interop.equal("id", result.getMsgId(), found.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX));
        Interop.equal("offset", result.getQueueOffset(), found.getQueueOffset());
        producer.shutdown();
    }

    private static void namespace() throws Exception {
        String topic = Interop.fresh("spaced");
        DefaultMQProducer producer = new DefaultMQProducer("ns", Interop.fresh("spaced"));
        producer.setNamesrvAddr(Interop.nameserver);
        producer.start();
        SendResult result = producer.send(new Message(topic, bytes("x")));
        Interop.equal("status", SendStatus.SEND_OK, result.getSendStatus());
        Interop.equal("topic without its namespace", topic, result.getMessageQueue().getTopic());
        producer.shutdown();
    }
}
