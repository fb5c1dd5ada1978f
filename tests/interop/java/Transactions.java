import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Function;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that wait until their producer says commit or rollback, or is asked. */
final class Transactions {
    private Transactions() {}

    static void addTo(Map<String, Interop.Scenario> scenarios) {
        scenarios.put("transaction_committed", Transactions::committed);
        scenarios.put("transaction_rolled_back", Transactions::rolledBack);
        scenarios.put("transaction_committed_when_asked", Transactions::asked);
        scenarios.put("transaction_rolled_back_when_asked", Transactions::askedAndRolledBack);
        scenarios.put("transaction_asked_of_another_producer", Transactions::askedOfAnother);
    }

    private static TransactionMQProducer producer(
            String group,
            String instance,
            LocalTransactionState local,
            Function<MessageExt, LocalTransactionState> asked)
            throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(Interop.fresh(group));
        producer.setNamesrvAddr(Interop.nameserver);
        producer.setInstanceName(Interop.fresh(group + instance));
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(
                new TransactionListener() {
                    @Override
                    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                        return local;
                    }

                    @Override
                    public LocalTransactionState checkLocalTransaction(MessageExt message) {
                        return asked.apply(message);
                    }
                });
        producer.start();
        return producer;
    }

    private static LocalTransactionState nobodyAsks(MessageExt message) {
        throw new AssertionError("asked about " + message);
    }

    private static DefaultMQPushConsumer consumer(String topic, List<String> received) throws Exception {
        DefaultMQPushConsumer consumer = Consuming.collect(topic, "", received);
        consumer.subscribe(topic, "*");
        consumer.start();
        return consumer;
    }

    private static void committed() throws Exception {
        String topic = Interop.fresh("tx_committed");
        List<String> received = Consuming.list();
        TransactionMQProducer producer =
                producer("tx_committed", "", LocalTransactionState.COMMIT_MESSAGE, Transactions::nobodyAsks);
        for (int number = 0; number < 20; number++) {
            producer.sendMessageInTransaction(new Message(topic, "tag", Sending.bytes("m" + number)), null);
        }
        DefaultMQPushConsumer consumer = consumer(topic, received);
        Interop.until("all messages", () -> received.size() >= 20);
        Interop.equal("different messages", 20, (int) received.stream().distinct().count());
        consumer.shutdown();
        producer.shutdown();
    }

    private static void rolledBack() throws Exception {
        String topic = Interop.fresh("tx_rolled_back");
        List<String> received = Consuming.list();
        TransactionMQProducer producer =
                producer("tx_rolled_back", "", LocalTransactionState.ROLLBACK_MESSAGE, Transactions::nobodyAsks);
        producer.sendMessageInTransaction(new Message(topic, Sending.bytes("never")), null);
        producer.send(new Message(topic, Sending.bytes("plain")));
        DefaultMQPushConsumer consumer = consumer(topic, received);
        Interop.until("the plain message", () -> received.contains("plain"));
        // Longer than the broker waits before it asks.
        Thread.sleep(3_000);
        Interop.equal("received", List.of("plain"), List.copyOf(received));
        consumer.shutdown();
        producer.shutdown();
    }

    private static void asked() throws Exception {
        String topic = Interop.fresh("tx_asked");
        List<String> received = Consuming.list();
        List<String> questions = Consuming.list();
        AtomicInteger count = new AtomicInteger();
        TransactionMQProducer producer =
                producer(
                        "tx_asked",
                        "",
                        LocalTransactionState.UNKNOW,
                        message -> {
                            questions.add(message.getTopic() + " " + message.getTransactionId());
                            return count.incrementAndGet() < 2
                                    ? LocalTransactionState.UNKNOW
                                    : LocalTransactionState.COMMIT_MESSAGE;
                        });
        String id =
                producer.sendMessageInTransaction(new Message(topic, Sending.bytes("late")), null)
                        .getTransactionId();
        DefaultMQPushConsumer consumer = consumer(topic, received);
        Interop.until("the message", () -> received.contains("late"));
        Interop.equal("questions", List.of(topic + " " + id, topic + " " + id), List.copyOf(questions));
        Thread.sleep(3_000);
        Interop.equal("received", List.of("late"), List.copyOf(received));
        Interop.equal("questions in the end", 2, questions.size());
        consumer.shutdown();
        producer.shutdown();
    }

    private static void askedAndRolledBack() throws Exception {
        String topic = Interop.fresh("tx_undone");
        List<String> received = Consuming.list();
        AtomicInteger count = new AtomicInteger();
        TransactionMQProducer producer =
                producer(
                        "tx_undone",
                        "",
                        LocalTransactionState.UNKNOW,
                        message -> {
                            count.incrementAndGet();
                            return LocalTransactionState.ROLLBACK_MESSAGE;
                        });
        producer.sendMessageInTransaction(new Message(topic, Sending.bytes("never")), null);
        Interop.until("a question", () -> count.get() > 0);
        producer.send(new Message(topic, Sending.bytes("plain")));
        DefaultMQPushConsumer consumer = consumer(topic, received);
        Interop.until("the plain message", () -> received.contains("plain"));
        Thread.sleep(3_000);
        Interop.equal("received", List.of("plain"), List.copyOf(received));
        Interop.equal("questions", 1, count.get());
        consumer.shutdown();
        producer.shutdown();
    }

    private static void askedOfAnother() throws Exception {
        String topic = Interop.fresh("tx_other");
        List<String> received = Consuming.list();
        TransactionMQProducer first =
                producer("tx_other", "first", LocalTransactionState.UNKNOW, Transactions::nobodyAsks);
        first.sendMessageInTransaction(new Message(topic, Sending.bytes("inherited")), null);
        first.shutdown();
        TransactionMQProducer second =
                producer(
                        "tx_other",
                        "second",
                        LocalTransactionState.COMMIT_MESSAGE,
                        message -> LocalTransactionState.COMMIT_MESSAGE);
        // A producer is known to the brokers of the topics that it has sent to.
        second.sendMessageInTransaction(new Message(topic, Sending.bytes("its own")), null);
        DefaultMQPushConsumer consumer = consumer(topic, received);
        Interop.until("both messages", () -> received.size() >= 2);
        Interop.equal(
                "received", List.of("inherited", "its own"), received.stream().sorted().toList());
        consumer.shutdown();
        second.shutdown();
    }
}
