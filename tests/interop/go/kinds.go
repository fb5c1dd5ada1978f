package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// delayedByLevel: three levels, sent in any order; each message comes when it is due, and once.
func delayedByLevel() {
	topic := fresh("go_delayed")
	createTopic(topic, 4)
	var lock sync.Mutex
	late := map[string]time.Duration{}
	made, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(resolver()),
		consumer.WithGroupName(fresh("go_delayed")),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	check(err)
	var got received
	check(made.Subscribe(topic, everything,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, each := range messages {
				lock.Lock()
				late[string(each.Body)] = time.Duration(each.StoreTimestamp-each.BornTimestamp) * time.Millisecond
				lock.Unlock()
				got.add(string(each.Body))
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(made.Start())
	defer made.Shutdown()
	feeder := newProducer("go_delayed")
	defer feeder.Shutdown()
	delays := map[int]time.Duration{3: 10 * time.Second, 2: 5 * time.Second, 1: time.Second}
	for level := range delays {
		message := primitive.NewMessage(topic, []byte(strconv.Itoa(level))).WithDelayTimeLevel(level)
		_, err := feeder.SendSync(context.Background(), message)
		check(err)
	}
	got.untilAll(3)
	lock.Lock()
	defer lock.Unlock()
	for level, delay := range delays {
		came := late[strconv.Itoa(level)]
		holds(came >= delay && came < delay+5*time.Second, "level %d came after %v", level, came)
	}
}

// retriedUntilConsumed: a failed message comes back, with its count; its queue goes on meanwhile.
func retriedUntilConsumed() {
	topic := fresh("go_retried")
	send(topic, "r", 3)
	var lock sync.Mutex
	times := map[string]int32{}
	var got received
	made, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(resolver()),
		consumer.WithGroupName(fresh("go_retried")),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	check(err)
	check(made.Subscribe(topic, everything,
		func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, each := range messages {
				if each.ReconsumeTimes == 0 {
					concurrent, _ := primitive.GetConcurrentlyCtx(ctx)
					concurrent.DelayLevelWhenNextConsume = 1
					return consumer.ConsumeRetryLater, nil
				}
				lock.Lock()
				times[string(each.Body)] = each.ReconsumeTimes
				lock.Unlock()
				got.add(string(each.Body))
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(made.Start())
	defer made.Shutdown()
	got.untilAll(3)
	lock.Lock()
	defer lock.Unlock()
	for body, count := range times {
		holds(count == 1, "%s came after %d retries", body, count)
	}
}

// orderedQueuesChangeHands: one of two members leaves; the other goes on in order, without a gap.
func orderedQueuesChangeHands() {
	topic := fresh("go_hands")
	createTopic(topic, 4)
	made, err := rocketmq.NewProducer(
		producer.WithNsResolver(resolver()),
		producer.WithGroupName(fresh("go_hands")),
		producer.WithInstanceName(fresh("go_hands")),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	)
	check(err)
	check(made.Start())
	defer made.Shutdown()
	feed := func(from, to int) {
		for index := from; index < to; index++ {
			message := primitive.NewMessage(topic, []byte(fmt.Sprintf("%d:%03d", index%8, index)))
			message.WithShardingKey(strconv.Itoa(index % 8))
			_, err := made.SendSync(context.Background(), message)
			check(err)
		}
	}
	ordered := consumer.WithConsumerOrder(true)
	first := collect("go_hands", "1", topic, everything, ordered)
	feed(0, 80)
	first.untilAll(80)
	second := collect("go_hands", "2", topic, everything, ordered)
	defer second.Shutdown()
	check(first.Shutdown())
	feed(80, 160)
	until("the other goes on", func() bool { return second.count() >= 80 })
	last := map[string]string{}
	for _, each := range second.all() {
		key := strings.SplitN(each, ":", 2)[0]
		holds(last[key] < each, "%s after %s", each, last[key])
		last[key] = each
	}
}

// decider says what becomes of transactions: by their bodies, at once or when it is asked.
type decider struct {
	received
	atOnce, asked primitive.LocalTransactionState
}

func (d *decider) ExecuteLocalTransaction(*primitive.Message) primitive.LocalTransactionState {
	return d.atOnce
}

func (d *decider) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	d.add(string(message.Body))
	return d.asked
}

// decided begins transactions of that producer, then sends a plain message; returns what a consumer
// gets.
func decided(name string, deciding *decider, count int) *collector {
	topic := fresh(name)
	createTopic(topic, 1)
	made, err := rocketmq.NewTransactionProducer(deciding,
		producer.WithNsResolver(resolver()),
		producer.WithGroupName(fresh(name)),
		producer.WithInstanceName(fresh(name)),
	)
	check(err)
	check(made.Start())
	defer made.Shutdown()
	for index := 0; index < count; index++ {
		message := primitive.NewMessage(topic, []byte("t"+strconv.Itoa(index))).WithTag("paid")
		result, err := made.SendMessageInTransaction(context.Background(), message)
		check(err)
		holds(result.Status == primitive.SendOK, "status %v", result.Status)
	}
	if deciding.atOnce == primitive.UnknowState {
		until("it is asked", func() bool { return deciding.count() >= count })
	}
	got := collect(name, "", topic, everything)
	send(topic, "last", 1)
	return got
}

func transactionCommitted() {
	got := decided("go_committed", &decider{atOnce: primitive.CommitMessageState}, 5)
	defer got.Shutdown()
	got.untilAll(6)
}

func transactionRolledBack() {
	got := decided("go_rolled_back", &decider{atOnce: primitive.RollbackMessageState}, 5)
	defer got.Shutdown()
	until("the last", func() bool { return got.count() > 0 })
	time.Sleep(time.Second)
	holds(got.count() == 1 && got.all()[0] == "last0", "%v", got.all())
}

func transactionCommittedWhenAsked() {
	unknown := &decider{atOnce: primitive.UnknowState, asked: primitive.CommitMessageState}
	got := decided("go_asked", unknown, 3)
	defer got.Shutdown()
	until("all", func() bool { return got.count() >= 4 })
	got.untilAll(4)
}

func transactionRolledBackWhenAsked() {
	unknown := &decider{atOnce: primitive.UnknowState, asked: primitive.RollbackMessageState}
	got := decided("go_asked_no", unknown, 3)
	defer got.Shutdown()
	until("the last", func() bool { return got.count() > 0 })
	time.Sleep(time.Second)
	holds(got.count() == 1, "%v", got.all())
}
