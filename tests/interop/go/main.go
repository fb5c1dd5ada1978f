// What a Go program written for RocketMQ does, as scenarios with names.
//
// Arguments: the name server's address, the broker's, then the names of scenarios; none for all;
// --list lists them. Each scenario prints one line: "PASS name" or "FAIL name reason".
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// A Go client looks for new routes, such as that of its own retries, every 30 s.
const patience = 90 * time.Second

var (
	nameserver, broker string
	run                = strconv.FormatInt(time.Now().UnixNano(), 36)
	everything         = consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
)

type scenario struct {
	name string
	play func()
}

var scenarios = []scenario{
	{"go_send_sync", sendSync},
	{"go_send_async", sendAsync},
	{"go_send_oneway", sendOneway},
	{"go_send_batch", sendBatch},
	{"go_send_compressed", sendCompressed},
	{"go_topic_made_and_deleted", topicMadeAndDeleted},
	{"go_consume_pushed", consumePushed},
	{"go_consume_shared_by_two", consumeShared},
	{"go_consume_broadcast", consumeBroadcast},
	{"go_consume_by_tags", consumeByTags},
	{"go_consume_by_sql92", consumeBySQL92},
	{"go_consume_in_order", consumeInOrder},
	{"go_consume_goes_on_where_it_stopped", consumeResumes},
	{"go_pull", pull},
	{"go_delayed_by_level", delayedByLevel},
	{"go_retried_until_consumed", retriedUntilConsumed},
	{"go_ordered_queues_change_hands", orderedQueuesChangeHands},
	{"go_transaction_committed", transactionCommitted},
	{"go_transaction_rolled_back", transactionRolledBack},
	{"go_transaction_committed_when_asked", transactionCommittedWhenAsked},
	{"go_transaction_rolled_back_when_asked", transactionRolledBackWhenAsked},
}

func main() {
	rlog.SetLogLevel("fatal")
	if os.Args[1] == "--list" {
		for _, each := range scenarios {
			fmt.Println(each.name)
		}
		return
	}
	nameserver, broker = os.Args[1], os.Args[2]
	failed := false
	for _, each := range scenarios {
		if len(os.Args) > 3 && !contains(os.Args[3:], each.name) {
			continue
		}
		if reason := attempt(each.play); reason == nil {
			fmt.Println("PASS", each.name)
		} else {
			failed = true
			fmt.Println("FAIL", each.name, strings.ReplaceAll(fmt.Sprint(reason), "\n", " "))
		}
	}
	if failed {
		os.Exit(1)
	}
}

func attempt(play func()) (reason any) {
	defer func() { reason = recover() }()
	play()
	return nil
}

func contains(all []string, one string) bool {
	for _, each := range all {
		if each == one {
			return true
		}
	}
	return false
}

// fresh is a name that no earlier run has used.
func fresh(what string) string { return what + "_" + run }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func holds(condition bool, what string, values ...any) {
	if !condition {
		panic(fmt.Sprintf(what, values...))
	}
}

func until(what string, condition func() bool) {
	for end := time.Now().Add(patience); !condition(); time.Sleep(10 * time.Millisecond) {
		holds(time.Now().Before(end), "never: %s", what)
	}
}

func resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{nameserver})
}

func newProducer(name string) rocketmq.Producer {
	made, err := rocketmq.NewProducer(
		producer.WithNsResolver(resolver()),
		producer.WithGroupName(fresh(name)),
		producer.WithInstanceName(fresh(name)),
		producer.WithSendMsgTimeout(10*time.Second),
	)
	check(err)
	check(made.Start())
	return made
}

func send(topic, tag string, count int) []*primitive.SendResult {
	made := newProducer("feeder_" + topic + tag)
	defer made.Shutdown()
	var results []*primitive.SendResult
	for index := 0; index < count; index++ {
		message := primitive.NewMessage(topic, []byte(tag+strconv.Itoa(index))).WithTag(tag)
		result, err := made.SendSync(context.Background(), message)
		check(err)
		results = append(results, result)
	}
	return results
}

func sendSync() {
	for _, result := range send(fresh("go_sync"), "T", 20) {
		holds(result.Status == primitive.SendOK, "status %v", result.Status)
		holds(result.OffsetMsgID != "" && result.MsgID != "", "no ids: %v", result)
	}
}

func sendAsync() {
	topic := fresh("go_async")
	made := newProducer("go_async")
	defer made.Shutdown()
	var left sync.WaitGroup
	var failures received
	left.Add(200)
	for index := 0; index < 200; index++ {
		message := primitive.NewMessage(topic, []byte(strconv.Itoa(index)))
		check(made.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			if err != nil {
				failures.add(err.Error())
			}
			left.Done()
		}, message))
	}
	left.Wait()
	holds(failures.count() == 0, "failed: %v", failures.all())
}

func sendOneway() {
	topic := fresh("go_oneway")
	send(topic, "first", 1)
	made := newProducer("go_oneway")
	defer made.Shutdown()
	for index := 0; index < 10; index++ {
		check(made.SendOneWay(context.Background(), primitive.NewMessage(topic, []byte("o"+strconv.Itoa(index)))))
	}
	got := collect("go_oneway", "", topic, everything)
	defer got.Shutdown()
	until("eleven messages", func() bool { return got.count() == 11 })
}

func sendBatch() {
	topic := fresh("go_batch")
	send(topic, "first", 1)
	made := newProducer("go_batch")
	defer made.Shutdown()
	var messages []*primitive.Message
	for index := 0; index < 32; index++ {
		messages = append(messages, primitive.NewMessage(topic, []byte("b"+strconv.Itoa(index))))
	}
	result, err := made.SendSync(context.Background(), messages...)
	check(err)
	holds(result.Status == primitive.SendOK, "status %v", result.Status)
	got := collect("go_batch", "", topic, everything)
	defer got.Shutdown()
	until("33 messages", func() bool { return got.count() == 33 })
}

func sendCompressed() {
	topic := fresh("go_compressed")
	body := strings.Repeat("x", 1<<20)
	made := newProducer("go_compressed")
	defer made.Shutdown()
	_, err := made.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)))
	check(err)
	got := collect("go_compressed", "", topic, everything)
	defer got.Shutdown()
	until("it", func() bool { return got.count() == 1 })
	holds(got.all()[0] == body, "another body")
}

func newAdmin() admin.Admin {
	made, err := admin.NewAdmin(admin.WithResolver(resolver()))
	check(err)
	return made
}

func createTopic(topic string, queues int) {
	made := newAdmin()
	defer made.Close()
	check(made.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(broker),
		admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues)))
	until("a route", func() bool {
		found, err := made.FetchPublishMessageQueues(context.Background(), topic)
		return err == nil && len(found) == queues
	})
}

func topicMadeAndDeleted() {
	topic := fresh("go_made")
	createTopic(topic, 3)
	made := newAdmin()
	defer made.Close()
	all, err := made.FetchAllTopicList(context.Background())
	check(err)
	holds(contains(all.TopicList, topic), "not in the list")
	check(made.DeleteTopic(context.Background(), admin.WithTopicDelete(topic), admin.WithBrokerAddrDelete(broker),
		admin.WithNameSrvAddr([]string{nameserver})))
	until("it is gone", func() bool {
		all, err := made.FetchAllTopicList(context.Background())
		return err == nil && !contains(all.TopicList, topic)
	})
}

// received is what consumers got, from their many threads.
type received struct {
	lock   sync.Mutex
	bodies []string
	queues map[int]bool
}

func (r *received) add(body string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.bodies = append(r.bodies, body)
}

func (r *received) count() int {
	r.lock.Lock()
	defer r.lock.Unlock()
	return len(r.bodies)
}

func (r *received) all() []string {
	r.lock.Lock()
	defer r.lock.Unlock()
	return append([]string(nil), r.bodies...)
}

func (r *received) sawQueue(queue int) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.queues == nil {
		r.queues = map[int]bool{}
	}
	r.queues[queue] = true
}

func (r *received) queueCount() int {
	r.lock.Lock()
	defer r.lock.Unlock()
	return len(r.queues)
}

// untilAll waits for so many messages, and makes sure that none came twice.
func (r *received) untilAll(count int) {
	until(fmt.Sprint(count, " messages"), func() bool { return r.count() >= count })
	all := r.all()
	sort.Strings(all)
	for index := 1; index < len(all); index++ {
		holds(all[index] != all[index-1], "%s came twice", all[index])
	}
	holds(len(all) == count, "%d, not %d", len(all), count)
}

type collector struct {
	rocketmq.PushConsumer
	received
}

func collect(group, member, topic string, selector consumer.MessageSelector, options ...consumer.Option) *collector {
	options = append([]consumer.Option{
		consumer.WithNsResolver(resolver()),
		consumer.WithGroupName(fresh(group)),
		consumer.WithInstance(fresh(group + member)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, options...)
	made, err := rocketmq.NewPushConsumer(options...)
	check(err)
	got := &collector{PushConsumer: made}
	check(made.Subscribe(topic, selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, each := range messages {
				got.sawQueue(each.Queue.QueueId)
				got.add(string(each.Body))
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(made.Start())
	return got
}

func consumePushed() {
	topic := fresh("go_pushed")
	send(topic, "P", 100)
	got := collect("go_pushed", "", topic, everything)
	defer got.Shutdown()
	got.untilAll(100)
	send(topic, "Q", 5)
	got.untilAll(105)
}

func consumeShared() {
	topic := fresh("go_shared")
	createTopic(topic, 8)
	one := collect("go_shared", "1", topic, everything)
	defer one.Shutdown()
	two := collect("go_shared", "2", topic, everything)
	defer two.Shutdown()
	// Rounds of two messages a queue, until the members have divided the queues among them.
	total := 0
	until("each has some of the queues", func() bool {
		total += len(send(topic, fmt.Sprint("S", total, "-"), 16))
		until("the round", func() bool { return one.count()+two.count() >= total })
		return one.queueCount() > 0 && two.queueCount() > 0
	})
}

func consumeBroadcast() {
	topic := fresh("go_broadcast")
	createTopic(topic, 4)
	one := collect("go_broadcast", "1", topic, everything, consumer.WithConsumerModel(consumer.BroadCasting))
	defer one.Shutdown()
	two := collect("go_broadcast", "2", topic, everything, consumer.WithConsumerModel(consumer.BroadCasting))
	defer two.Shutdown()
	send(topic, "B", 40)
	one.untilAll(40)
	two.untilAll(40)
}

func consumeByTags() {
	topic := fresh("go_tags")
	send(topic, "red", 10)
	send(topic, "green", 10)
	send(topic, "blue", 10)
	got := collect("go_tags", "", topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "red || blue"})
	defer got.Shutdown()
	got.untilAll(20)
	for _, each := range got.all() {
		holds(!strings.HasPrefix(each, "green"), "got %s", each)
	}
}

func consumeBySQL92() {
	topic := fresh("go_sql92")
	made := newProducer("go_sql92")
	defer made.Shutdown()
	for index := 0; index < 30; index++ {
		message := primitive.NewMessage(topic, []byte("m"+strconv.Itoa(index)))
		message.WithProperty("n", strconv.Itoa(index))
		_, err := made.SendSync(context.Background(), message)
		check(err)
	}
	got := collect("go_sql92", "", topic, consumer.MessageSelector{Type: consumer.SQL92, Expression: "n between 5 and 8 or n = 20"})
	defer got.Shutdown()
	got.untilAll(5)
}

func consumeInOrder() {
	topic := fresh("go_orderly")
	createTopic(topic, 4)
	made, err := rocketmq.NewProducer(
		producer.WithNsResolver(resolver()),
		producer.WithGroupName(fresh("go_orderly")),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	)
	check(err)
	check(made.Start())
	defer made.Shutdown()
	for index := 0; index < 200; index++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("%d:%03d", index%10, index)))
		message.WithShardingKey(strconv.Itoa(index % 10))
		_, err := made.SendSync(context.Background(), message)
		check(err)
	}
	got := collect("go_orderly", "", topic, everything, consumer.WithConsumerOrder(true))
	defer got.Shutdown()
	got.untilAll(200)
	last := map[string]string{}
	for _, each := range got.all() {
		key := strings.SplitN(each, ":", 2)[0]
		holds(last[key] < each, "%s after %s", each, last[key])
		last[key] = each
	}
}

func consumeResumes() {
	topic := fresh("go_resumes")
	send(topic, "a", 30)
	first := collect("go_resumes", "", topic, everything)
	first.untilAll(30)
	check(first.Shutdown())
	send(topic, "b", 30)
	second := collect("go_resumes", "", topic, everything)
	defer second.Shutdown()
	second.untilAll(30)
	for _, each := range second.all() {
		holds(strings.HasPrefix(each, "b"), "%s comes again", each)
	}
}

func pull() {
	topic := fresh("go_pull")
	send(topic, "L", 50)
	made, err := rocketmq.NewPullConsumer(
		consumer.WithNsResolver(resolver()),
		consumer.WithGroupName(fresh("go_pull")),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	check(err)
	check(made.Subscribe(topic, everything))
	check(made.Start())
	defer made.Shutdown()
	var got received
	until("fifty", func() bool {
		request, err := made.Poll(context.Background(), 2*time.Second)
		if err != nil {
			return false
		}
		for _, each := range request.GetMsgList() {
			got.add(string(each.Body))
		}
		made.ACK(context.Background(), request, consumer.ConsumeSuccess)
		return got.count() >= 50
	})
	got.untilAll(50)
}
