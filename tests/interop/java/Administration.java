import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.TopicStatsTable;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.ConsumerConnection;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What an operator's tools ask. */
final class Administration {
    private Administration() {}

    static void addTo(Map<String, Interop.Scenario> scenarios) {
        scenarios.put("admin_creates_and_deletes_a_topic", Administration::topic);
        scenarios.put("admin_refuses_a_bad_topic", Administration::badTopic);
        scenarios.put("admin_creates_a_topic_as_clients_do", Administration::topicByClient);
        scenarios.put("admin_creates_and_deletes_a_group", Administration::group);
        scenarios.put("admin_sees_consumers_and_their_lag", Administration::consumers);
        scenarios.put("admin_resets_offsets", Administration::resets);
        scenarios.put("admin_reads_the_broker", Administration::broker);
    }

    interface Work {
        void with(DefaultMQAdminExt admin) throws Exception;
    }

    static void admin(Work work) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(Interop.nameserver);
        admin.setInstanceName(Interop.fresh("admin" + System.nanoTime()));
        admin.start();
        try {
            work.with(admin);
        } finally {
            admin.shutdown();
        }
    }

    static String master(DefaultMQAdminExt admin) throws Exception {
        ClusterInfo cluster = admin.examineBrokerClusterInfo();
        return cluster.getBrokerAddrTable().values().iterator().next().selectBrokerAddr();
    }

    static void createTopic(String topic, int queues) throws Exception {
        createTopic(topic, queues, Map.of());
    }

    static void createTopic(String topic, int queues, Map<String, String> attributes) throws Exception {
        admin(
                admin -> {
                    TopicConfig config = new TopicConfig(topic, queues, queues);
                    config.getAttributes().putAll(attributes);
                    admin.createAndUpdateTopicConfig(master(admin), config);
                    Interop.until("a route of " + topic, () -> hasRoute(admin, topic));
                });
    }

    private static boolean hasRoute(DefaultMQAdminExt admin, String topic) {
        try {
            return !admin.examineTopicRouteInfo(topic).getQueueDatas().isEmpty();
        } catch (Exception error) {
            return false;
        }
    }

    private static void topic() throws Exception {
        String topic = Interop.fresh("made");
        createTopic(topic, 3);
        admin(
                admin -> {
                    TopicStatsTable stats = admin.examineTopicStats(topic);
                    Interop.equal("queues with statistics", 3, stats.getOffsetTable().size());
                    Interop.holds("it is in the list", admin.fetchAllTopicList().getTopicList().contains(topic));
                    Interop.equal("write queues", 3, admin.examineTopicConfig(master(admin), topic).getWriteQueueNums());
                    admin.createAndUpdateTopicConfig(master(admin), new TopicConfig(topic, 6, 6));
                    Interop.equal("after the change", 6, admin.examineTopicConfig(master(admin), topic).getWriteQueueNums());
                });
        Sending.send(topic, "x", 12);
        admin(
                admin -> {
                    long stored =
                            admin.examineTopicStats(topic).getOffsetTable().values().stream()
                                    .mapToLong(each -> each.getMaxOffset() - each.getMinOffset())
                                    .sum();
                    Interop.equal("messages", 12L, stored);
                    admin.deleteTopicInBroker(Set.of(master(admin)), topic);
                    admin.deleteTopicInNameServer(Set.of(Interop.nameserver), topic);
                    Interop.until("its route is gone", () -> !hasRoute(admin, topic));
                });
        createTopic(topic, 3);
        admin(
                admin -> {
                    long stored =
                            admin.examineTopicStats(topic).getOffsetTable().values().stream()
                                    .mapToLong(each -> each.getMaxOffset())
                                    .sum();
                    Interop.equal("messages of the topic made again", 0L, stored);
                });
    }

    private static void badTopic() throws Exception {
        admin(
                admin -> {
                    for (String name : List.of("TBW102", "a b", "x".repeat(128))) {
                        try {
                            admin.createAndUpdateTopicConfig(master(admin), new TopicConfig(name, 1, 1));
                            throw new AssertionError(name + " was created");
                        } catch (MQClientException | MQBrokerException error) {
                            int code =
                                    error instanceof MQBrokerException
                                            ? ((MQBrokerException) error).getResponseCode()
                                            : ((MQClientException) error).getResponseCode();
                            Interop.equal("code of " + name, 29, code);
                        }
                    }
                });
    }

    private static void topicByClient() throws Exception {
        String topic = Interop.fresh("byClient");
        admin(
                admin -> {
                    admin.createTopic("DefaultCluster", topic, 5, Map.of());
                    Interop.until("a route", () -> hasRoute(admin, topic));
                    Interop.equal("queues", 5, admin.examineTopicConfig(master(admin), topic).getReadQueueNums());
                });
    }

    private static void group() throws Exception {
        String group = Interop.fresh("made_group");
        admin(
                admin -> {
                    SubscriptionGroupConfig config = new SubscriptionGroupConfig();
                    config.setGroupName(group);
                    config.setRetryMaxTimes(3);
                    admin.createAndUpdateSubscriptionGroupConfig(master(admin), config);
                    Interop.equal("retries", 3, admin.examineSubscriptionGroupConfig(master(admin), group).getRetryMaxTimes());
                    Interop.holds(
                            "it is in the list",
                            admin.getAllSubscriptionGroup(master(admin), 10_000).getSubscriptionGroupTable().containsKey(group));
                    admin.deleteSubscriptionGroup(master(admin), group, true);
                    Interop.holds(
                            "it is gone",
                            !admin.getAllSubscriptionGroup(master(admin), 10_000).getSubscriptionGroupTable().containsKey(group));
                });
    }

    private static void consumers() throws Exception {
        String topic = Interop.fresh("watched");
        Sending.send(topic, "w", 20);
        List<String> received = Consuming.list();
        DefaultMQPushConsumer consumer = Consuming.collect("watched", "", received);
        consumer.subscribe(topic, "w");
        consumer.start();
        Consuming.untilAll(received, 20);
        admin(
                admin -> {
                    String group = consumer.getConsumerGroup();
                    ConsumerConnection connection = admin.examineConsumerConnectionInfo(group);
                    Interop.equal("members", 1, connection.getConnectionSet().size());
                    Interop.equal("filter", "w", connection.getSubscriptionTable().get(topic).getSubString());
                    String client = connection.getConnectionSet().iterator().next().getClientId();
                    Interop.holds(
                            "running info comes from the client",
                            admin.getConsumerRunningInfo(group, client, false).getSubscriptionSet().size() >= 1);
                    Interop.until("no lag", () -> lag(admin, group, topic) == 0);
                    Interop.holds("who consumes", admin.queryTopicConsumeByWho(topic).getGroupList().contains(group));
                });
        consumer.shutdown();
        Sending.send(topic, "w", 7);
        admin(admin -> Interop.equal("lag", 7L, lag(admin, consumer.getConsumerGroup(), topic)));
    }

    private static long lag(DefaultMQAdminExt admin, String group, String topic) {
        try {
            ConsumeStats stats = admin.examineConsumeStats(group, topic);
            return stats.computeTotalDiff();
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    private static void resets() throws Exception {
        String topic = Interop.fresh("reset");
        Sending.send(topic, "r", 15);
        List<String> received = Consuming.list();
        DefaultMQPushConsumer consumer = Consuming.collect("reset", "", received);
        consumer.subscribe(topic, "*");
        consumer.start();
        Consuming.untilAll(received, 15);
        admin(
                admin -> {
                    Map<MessageQueue, Long> offsets =
                            admin.resetOffsetByTimestamp(topic, consumer.getConsumerGroup(), 0, true);
                    Interop.holds("queues are reset", !offsets.isEmpty());
                });
        Interop.until("all come once more", () -> received.size() >= 30);
        consumer.shutdown();
    }

    private static void broker() throws Exception {
        admin(
                admin -> {
                    String address = master(admin);
                    Map<String, String> stats = admin.fetchBrokerRuntimeStats(address).getTable();
                    for (String key : List.of("brokerVersionDesc", "putTps", "msgPutTotalTodayNow", "commitLogMaxOffset", "bootTimestamp")) {
                        Interop.holds("runtime info has " + key + ", not just " + stats.keySet(), stats.containsKey(key));
                    }
                    Properties config = admin.getBrokerConfig(address);
                    Interop.equal("name", "broker-a", config.getProperty("brokerName"));
                    Properties change = new Properties();
                    change.setProperty("noSuchKeyOfAnyone", "1");
                    admin.updateBrokerConfig(address, change);
                    Interop.holds("topics", admin.getAllTopicConfig(address, 10_000).getTopicConfigTable().size() > 5);
                });
    }
}
