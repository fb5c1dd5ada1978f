import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What `bench/client.py` does, with the official client: "ready" after the first send, then "case
 * microseconds microseconds" for each: the processor time of this process for a message, none for
 * "alone", and the time by the clock; each the least of the rounds. Arguments: name server, sends,
 * batches, rounds. Its topics exist.
 */
public final class JavaClient {
    private static final int IN_FLIGHT = 64;
    private static final int BATCH = 32;
    private static final int MANY = 256;
    private static final int SENDERS = 8;
    private static final int ALONE = 1000;
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final byte[] BODY = new byte[1024];

    private interface Work {
        void run() throws Exception;
    }

    private JavaClient() {}

    public static void main(String[] arguments) throws Exception {
        String nameserver = arguments[0];
        int sends = Integer.parseInt(arguments[1]);
        int batches = Integer.parseInt(arguments[2]);
        int rounds = Integer.parseInt(arguments[3]);
        new Random(1).nextBytes(BODY);
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(nameserver);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        producer.send(new Message("warm-java", BODY));
        System.out.println("ready");
        if (System.in.read() < 0 || rounds == 0) {
            System.exit(0);
        }
        measure("send", sends, rounds, () -> send(producer, sends));
        System.out.printf("alone 0 %.3f%n", alone(producer, rounds));
        measure("batch", batches * BATCH, rounds, () -> batch(producer, batches));
        measure("consume", sends, rounds, () -> consume(nameserver, sends));
        measure("pull", batches * BATCH, rounds, () -> pull(nameserver, batches * BATCH, BATCH));
        measure("bulk", batches * BATCH, rounds, () -> pull(nameserver, batches * BATCH, MANY));
        System.exit(0);
    }

    private static void measure(String name, int count, int rounds, Work work) throws Exception {
        double cpu = Double.MAX_VALUE;
        double clock = Double.MAX_VALUE;
        for (int round = 0; round < rounds; round++) {
            long cpuBegan = SYSTEM.getProcessCpuTime();
            long began = System.nanoTime();
            work.run();
            cpu = Math.min(cpu, SYSTEM.getProcessCpuTime() - cpuBegan);
            clock = Math.min(clock, System.nanoTime() - began);
        }
        System.out.printf("%s %.3f %.3f%n", name, cpu / count / 1000, clock / count / 1000);
    }

    /** The median of sends one after the other, by the clock, the least of the rounds. */
    private static double alone(DefaultMQProducer producer, int rounds) throws Exception {
        double least = Double.MAX_VALUE;
        for (int round = 0; round < rounds; round++) {
            long[] took = new long[ALONE];
            for (int number = 0; number < ALONE; number++) {
                long began = System.nanoTime();
                producer.send(new Message("single-java", BODY));
                took[number] = System.nanoTime() - began;
            }
            Arrays.sort(took);
            least = Math.min(least, took[ALONE / 2]);
        }
        return least / 1000;
    }

    private static void send(DefaultMQProducer producer, int count) throws Exception {
        Semaphore room = new Semaphore(IN_FLIGHT);
        AtomicReference<Throwable> failed = new AtomicReference<>();
        SendCallback done =
                new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        room.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        failed.set(error);
                        room.release();
                    }
                };
        for (int number = 0; number < count; number++) {
            room.acquire();
            producer.send(new Message("single-java", BODY), done);
        }
        room.acquire(IN_FLIGHT);
        if (failed.get() != null) {
            throw new IllegalStateException(failed.get());
        }
    }

    private static void batch(DefaultMQProducer producer, int count) throws Exception {
        AtomicReference<Throwable> failed = new AtomicReference<>();
        List<Thread> senders = new ArrayList<>();
        for (int sender = 0; sender < SENDERS; sender++) {
            Thread thread =
                    new Thread(
                            () -> {
                                try {
                                    for (int number = 0; number < count / SENDERS; number++) {
                                        List<Message> messages = new ArrayList<>(BATCH);
                                        for (int index = 0; index < BATCH; index++) {
                                            messages.add(new Message("batched-java", BODY));
                                        }
                                        producer.send(messages);
                                    }
                                } catch (Exception error) {
                                    failed.set(error);
                                }
                            });
            thread.start();
            senders.add(thread);
        }
        for (Thread each : senders) {
            each.join();
        }
        if (failed.get() != null) {
            throw new IllegalStateException(failed.get());
        }
    }

    private static void consume(String nameserver, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("g" + System.nanoTime());
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("single-java", "*");
        consumer.registerMessageListener(
                (MessageListenerConcurrently)
                        (messages, context) -> {
                            messages.forEach(each -> left.countDown());
                            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                        });
        consumer.start();
        left.await();
        consumer.shutdown();
    }

    private static void pull(String nameserver, int count, int atOnce) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("p" + System.nanoTime());
        consumer.setNamesrvAddr(nameserver);
        consumer.start();
        int left = count;
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues("batched-java")) {
            long offset = 0;
            while (left > 0) {
                PullResult found = consumer.pull(queue, "*", offset, atOnce);
                if (found.getMsgFoundList() == null) {
                    break;
                }
                offset = found.getNextBeginOffset();
                left -= found.getMsgFoundList().size();
            }
        }
        consumer.shutdown();
    }
}
