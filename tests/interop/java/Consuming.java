import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** Consumers: push and lite pull, clustered and broadcast, filtered, in order. */
final class Consuming {
    private Consuming() {}

    static void addTo(Map<String, Interop.Scenario> scenarios) {
        scenarios.put("consume_pushed", Consuming::pushed);
        scenarios.put("consume_from_a_held_pull", Consuming::held);
        scenarios.put("consume_shared_by_two", Consuming::shared);
        scenarios.put("consume_broadcast", Consuming::broadcast);
        scenarios.put("consume_by_tags", Consuming::tags);
        scenarios.put("consume_by_sql92", Consuming::sql92);
        scenarios.put("consume_refuses_bad_sql92", Consuming::badSql92);
        scenarios.put("consume_in_order", Consuming::orderly);
        scenarios.put("consume_goes_on_where_it_stopped", Consuming::resumes);
        scenarios.put("consume_from_a_point_in_time", Consuming::fromTime);
        scenarios.put("lite_pull_subscribed", Consuming::liteSubscribed);
        scenarios.put("lite_pull_assigned_and_sought", Consuming::liteAssigned);
        scenarios.put("consume_batches_that_stay_one_record", Consuming::innerBatches);
    }

    static DefaultMQPushConsumer pushConsumer(String group, String member) throws MQClientException {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(Interop.fresh(group));
        consumer.setNamesrvAddr(Interop.nameserver);
        consumer.setInstanceName(Interop.fresh(group + member));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(200);
        consumer.setPollNameServerInterval(500);
        return consumer;
    }

    static DefaultMQPushConsumer collect(String group, String member, Collection<String> into)
            throws MQClientException {
        DefaultMQPushConsumer consumer = pushConsumer(group, member);
        consumer.registerMessageListener(
                (MessageListenerConcurrently)
                        (messages, context) -> {
                            messages.forEach(message -> into.add(new String(message.getBody(), UTF_8)));
                            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                        });
        return consumer;
    }

    static List<String> list() {
        return Collections.synchronizedList(new ArrayList<>());
    }

    /** Wait for so many messages, and make sure that none came twice. */
    static void untilAll(List<String> received, int count) throws InterruptedException {
        Interop.until(count + " messages", () -> received.size() >= count);
        Interop.equal("each once", count, Set.copyOf(received).size());
        Interop.equal("no more", count, received.size());
    }

    private static void pushed() throws Exception {
        String topic = Interop.fresh("pushed");
        Sending.send(topic, "P", 100);
        List<String> received = list();
        DefaultMQPushConsumer consumer = collect("pushed", "", received);
        consumer.subscribe(topic, "*");
        consumer.start();
        untilAll(received, 100);
        consumer.shutdown();
    }

    /** A consumer gets the messages of batches one by one, however the broker stores them. */
    private static void innerBatches() throws Exception {
        String topic = Interop.fresh("innerBatches");
        Administration.createTopic(topic, 1, Map.of("+queue.type", "BatchCQ"));
        DefaultMQProducer producer = Sending.producer("innerBatches");
        for (int batch = 0; batch < 3; batch++) {
            List<Message> messages = new ArrayList<>();
            for (int index = 0; index < 5; index++) {
                messages.add(new Message(topic, "B", "key" + batch, Sending.bytes(batch + "." + index)));
            }
            Interop.equal("offset", 6L * batch, producer.send(messages).getQueueOffset());
            producer.send(new Message(topic, "B", "alone", Sending.bytes("alone" + batch)));
        }
        producer.shutdown();
        List<String> received = list();
        Set<Long> offsets = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = pushConsumer("innerBatches", "");
        consumer.registerMessageListener(
                (MessageListenerConcurrently)
                        (messages, context) -> {
                            for (MessageExt message : messages) {
                                received.add(new String(message.getBody(), UTF_8));
                                offsets.add(message.getQueueOffset());
                            }
                            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                        });
        consumer.subscribe(topic, "*"); // A batch has no tag of its own.
        consumer.start();
        untilAll(received, 18);
        Interop.holds("bodies: " + received, received.containsAll(List.of("0.0", "2.4", "alone1")));
        Interop.equal("offsets", 18, offsets.size());
        consumer.shutdown();
    }

    private static void held() throws Exception {
        String topic = Interop.fresh("held");
        DefaultMQProducer producer = Sending.producer("held");
        producer.send(new Message(topic, Sending.bytes("first")));
        Set<String> received = Interop.newSet();
        DefaultMQPushConsumer consumer = collect("held", "", received);
        consumer.subscribe(topic, "*");
        consumer.start();
        Interop.until("the first message", () -> received.contains("first"));
        List<Long> waits = new ArrayList<>();
        for (int index = 0; index < 20; index++) {
            String body = "late" + index;
            long sent = System.nanoTime();
            producer.send(new Message(topic, Sending.bytes(body)));
            while (!received.contains(body) && System.nanoTime() - sent < 10_000_000_000L) {
                Thread.sleep(1);
            }
            waits.add((System.nanoTime() - sent) / 1_000_000);
        }
        Collections.sort(waits);
        Interop.holds("a held pull is woken at once, not after " + waits + " ms", waits.get(10) < 500);
        consumer.shutdown();
        producer.shutdown();
    }

    private static void shared() throws Exception {
        String topic = Interop.fresh("shared");
        Administration.createTopic(topic, 8);
        List<String> all = list();
        Set<Integer> first = ConcurrentHashMap.newKeySet();
        Set<Integer> second = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer one = share(topic, "1", first, all);
        DefaultMQPushConsumer two = share(topic, "2", second, all);
        Interop.until(
                "both have four queues",
                () ->
                        one.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
                                                .filter(queue -> queue.getTopic().equals(topic))
                                                .count()
                                        == 4
                                && two.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
                                                .filter(queue -> queue.getTopic().equals(topic))
                                                .count()
                                        == 4);
        Sending.send(topic, "S", 200);
        untilAll(all, 200);
        Interop.equal("queues of the first", 4, first.size());
        Interop.equal("queues of the second", 4, second.size());
        Interop.holds("they share nothing", Collections.disjoint(first, second));
        // A listener returns before its messages count as consumed: if its consumer left now, the other
        // would rightly get them again.
        Interop.until("the second counts what it consumed", () -> noted(two, topic) == 100);
        two.shutdown();
        Sending.send(topic, "X", 80);
        untilAll(all, 280);
        Interop.equal("the one left has all queues", 8, first.size());
        one.shutdown();
    }

    private static DefaultMQPushConsumer share(
            String topic, String member, Set<Integer> queues, List<String> all) throws MQClientException {
        DefaultMQPushConsumer consumer = pushConsumer("shared", member);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(
                (MessageListenerConcurrently)
                        (messages, context) -> {
                            queues.add(context.getMessageQueue().getQueueId());
                            messages.forEach(message -> all.add(new String(message.getBody(), UTF_8)));
                            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                        });
        consumer.start();
        return consumer;
    }

    private static void broadcast() throws Exception {
        String topic = Interop.fresh("broadcast");
        Administration.createTopic(topic, 4);
        List<String> first = list();
        List<String> second = list();
        DefaultMQPushConsumer one = collect("broadcast", "1", first);
        DefaultMQPushConsumer two = collect("broadcast", "2", second);
        for (DefaultMQPushConsumer each : List.of(one, two)) {
            each.setMessageModel(MessageModel.BROADCASTING);
            each.subscribe(topic, "*");
            each.start();
        }
        Sending.send(topic, "B", 40);
        untilAll(first, 40);
        untilAll(second, 40);
        one.shutdown();
        two.shutdown();
    }

    private static void tags() throws Exception {
        String topic = Interop.fresh("tags");
        Sending.send(topic, "red", 10);
        Sending.send(topic, "green", 10);
        Sending.send(topic, "blue", 10);
        List<String> received = list();
        DefaultMQPushConsumer consumer = collect("tags", "", received);
        consumer.subscribe(topic, "red || blue");
        consumer.start();
        Interop.until("twenty", () -> received.size() >= 20);
        Sending.send(topic, "green", 1);
        Sending.send(topic, "last_of_red", 1);
        Sending.send(topic, "red", 1);
        Interop.until("one more", () -> received.size() >= 21);
        Interop.holds("none but red and blue", received.stream().allMatch(each -> each.matches("(red|blue)\\d+")));
        consumer.shutdown();
    }

    private static void sql92() throws Exception {
        String topic = Interop.fresh("sql92");
        DefaultMQProducer producer = Sending.producer("sql92");
        for (int index = 0; index < 30; index++) {
            Message message = new Message(topic, index % 2 == 0 ? "even" : "odd", Sending.bytes("m" + index));
            message.putUserProperty("n", Integer.toString(index));
            if (index % 3 == 0) {
                message.putUserProperty("third", "yes");
            }
            producer.send(message);
        }
        List<String> received = list();
        DefaultMQPushConsumer consumer = collect("sql92", "", received);
        consumer.subscribe(
                topic, MessageSelector.bySql("TAGS in ('even') and n between 6 and 24 and third is not null"));
        consumer.start();
        untilAll(received, 4);
        Interop.equal("which", Set.of("m6", "m12", "m18", "m24"), Set.copyOf(received));
        consumer.shutdown();
        producer.shutdown();
    }

    private static void badSql92() throws Exception {
        DefaultMQPushConsumer consumer = collect("badSql92", "", list());
        String topic = Interop.fresh("badSql92");
        Sending.send(topic, "x", 1);
        consumer.subscribe(topic, MessageSelector.bySql("n > > 5"));
        try {
            consumer.start();
            throw new AssertionError("a broken expression was taken");
        } catch (MQClientException error) {
            Interop.equal("code", 23, error.getResponseCode());
        } finally {
            consumer.shutdown();
        }
    }

    private static void orderly() throws Exception {
        String topic = Interop.fresh("orderly");
        Administration.createTopic(topic, 4);
        DefaultMQProducer producer = Sending.producer("orderly");
        for (int index = 0; index < 200; index++) {
            producer.send(
                    new Message(topic, Sending.bytes(index % 4 + ":" + index)),
                    (queues, message, argument) -> queues.get((Integer) argument),
                    index % 4);
        }
        Map<String, List<Integer>> received = new ConcurrentHashMap<>();
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = pushConsumer("orderly", "");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(
                (MessageListenerOrderly)
                        (messages, context) -> {
                            for (MessageExt message : messages) {
                                String[] parts = new String(message.getBody(), UTF_8).split(":");
                                received.computeIfAbsent(parts[0], key -> list2()).add(Integer.valueOf(parts[1]));
                                count.incrementAndGet();
                            }
                            return ConsumeOrderlyStatus.SUCCESS;
                        });
        consumer.start();
        Interop.until("all", () -> count.get() >= 200);
        for (List<Integer> each : received.values()) {
            Interop.equal("order", each.stream().sorted().toList(), each);
            Interop.equal("count", 50, each.size());
        }
        consumer.shutdown();
        producer.shutdown();
    }

    private static List<Integer> list2() {
        return Collections.synchronizedList(new ArrayList<>());
    }

    private static void resumes() throws Exception {
        String topic = Interop.fresh("resumes");
        Sending.send(topic, "a", 30);
        List<String> first = list();
        DefaultMQPushConsumer consumer = collect("resumes", "1", first);
        consumer.subscribe(topic, "*");
        consumer.start();
        untilAll(first, 30);
        // A listener returns before its messages count as consumed.
        Interop.until("all are noted", () -> noted(consumer, topic) == 30);
        consumer.shutdown();
        Sending.send(topic, "b", 30);
        List<String> second = list();
        DefaultMQPushConsumer next = collect("resumes", "2", second);
        next.subscribe(topic, "*");
        next.start();
        untilAll(second, 30);
        Interop.holds("only what is new", second.stream().allMatch(each -> each.startsWith("b")));
        next.shutdown();
    }

    private static long noted(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getOffsetStore().cloneOffsetTable(topic).values().stream()
                .mapToLong(Long::longValue)
                .sum();
    }

    private static void fromTime() throws Exception {
        String topic = Interop.fresh("fromTime");
        DefaultMQProducer producer = Sending.producer("fromTime");
        MessageQueue queue = producer.send(new Message(topic, Sending.bytes("old"))).getMessageQueue();
        Thread.sleep(50);
        long between = System.currentTimeMillis();
        Thread.sleep(50);
        SendResult result = producer.send(new Message(topic, Sending.bytes("new")), queue);
        Interop.equal("offset at that time", result.getQueueOffset(), producer.searchOffset(queue, between));
        Interop.equal("offset before all", 0L, producer.searchOffset(queue, 0));
        Interop.equal("offset after all", 2L, producer.searchOffset(queue, between + 3_600_000));
        Interop.equal("minimum", 0L, producer.minOffset(queue));
        Interop.holds("earliest", producer.earliestMsgStoreTime(queue) <= between);
        producer.shutdown();
    }

    private static void liteSubscribed() throws Exception {
        String topic = Interop.fresh("liteSubscribed");
        Sending.send(topic, "L", 50);
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(Interop.fresh("liteSubscribed"));
        consumer.setNamesrvAddr(Interop.nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        List<String> received = list();
        Interop.until(
                "fifty",
                () -> {
                    consumer.poll(200).forEach(message -> received.add(new String(message.getBody(), UTF_8)));
                    return received.size() >= 50;
                });
        untilAll(received, 50);
        consumer.commitSync();
        consumer.shutdown();
    }

    private static void liteAssigned() throws Exception {
        String topic = Interop.fresh("liteAssigned");
        List<SendResult> sent = Sending.send(topic, "L", 40);
        MessageQueue queue = sent.get(0).getMessageQueue();
        long count = sent.stream().filter(result -> result.getMessageQueue().equals(queue)).count();
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(Interop.fresh("liteAssigned"));
        consumer.setNamesrvAddr(Interop.nameserver);
        consumer.setAutoCommit(false);
        consumer.start();
        Interop.holds("it knows the queues", consumer.fetchMessageQueues(topic).contains(queue));
        consumer.assign(List.of(queue));
        consumer.seek(queue, 2);
        List<Long> offsets = new ArrayList<>();
        Interop.until(
                "the rest of the queue",
                () -> {
                    consumer.poll(200).forEach(message -> offsets.add(message.getQueueOffset()));
                    return offsets.size() >= count - 2;
                });
        Interop.equal("the first", 2L, offsets.get(0));
        consumer.commit(Map.of(queue, 3L), true);
        Interop.equal("committed", 3L, consumer.committed(queue));
        consumer.shutdown();
    }
}
