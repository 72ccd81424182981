package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The state that lines on standard input ask for: "pause", "resume"; the end of the input stops.
type wanted struct {
	paused, stopped atomic.Bool
}

func (wanted *wanted) listen() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		wanted.paused.Store(lines.Text() == "pause")
	}
	wanted.stopped.Store(true)
}

// Reads topics until it is stopped, as tests/harness/log_readers.py describes.
func readLog(arguments []string) {
	servers, prefix, topics := arguments[0], arguments[1], strings.Split(arguments[2], ",")
	wanted := &wanted{}
	go wanted.listen()
	out := make(chan string, 1<<10)
	readers := sync.WaitGroup{}
	for _, argument := range arguments[3:] {
		readers.Add(1)
		go func() {
			defer readers.Done()
			follow(servers, prefix, topics, strings.Split(argument, ":"), wanted, out)
		}()
	}
	go func() {
		readers.Wait()
		close(out)
	}()
	for lines := range out {
		fmt.Print(lines)
	}
}

func follow(
	servers, prefix string, topics []string, reader []string, wanted *wanted, out chan<- string,
) {
	name, isolation, mode := reader[0], kgo.ReadUncommitted(), reader[2]
	if reader[1] == "read_committed" {
		isolation = kgo.ReadCommitted()
	}
	refresh, err := strconv.Atoi(reader[3])
	check(err)
	options := []kgo.Opt{kgo.SeedBrokers(servers), kgo.FetchIsolationLevel(isolation)}
	if refresh > 0 {
		age := time.Duration(refresh) * time.Millisecond
		options = append(options, kgo.MetadataMaxAge(age), kgo.MetadataMinAge(age))
	}
	if mode == "assign" {
		starts := map[string]map[int32]kgo.Offset{}
		for _, topic := range topics {
			starts[topic] = map[int32]kgo.Offset{0: kgo.NewOffset().At(0)}
		}
		options = append(options, kgo.ConsumePartitions(starts),
			kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	} else {
		assigned := func(context.Context, *kgo.Client, map[string][]int32) {
			out <- fmt.Sprintf("@\t%s\tassigned\n", name)
		}
		options = append(options, kgo.ConsumerGroup(prefix+name), kgo.ConsumeTopics(topics...),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.OnPartitionsAssigned(assigned),
			kgo.AutoCommitInterval(time.Second))
	}
	client, err := kgo.NewClient(options...)
	check(err)
	defer client.Close()
	for isPaused := false; !wanted.stopped.Load(); {
		if isPaused != wanted.paused.Load() {
			isPaused = !isPaused
			state := "resumed"
			if isPaused {
				state = "paused"
				client.PauseFetchTopics(topics...)
			} else {
				client.ResumeFetchTopics(topics...)
			}
			out <- fmt.Sprintf("@\t%s\t%s\n", name, state)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		fetches := client.PollFetches(ctx)
		cancel()
		for _, failed := range fetches.Errors() {
			var rejoins *kgo.ErrGroupSession // the coordinator is away; the client joins again
			if !errors.Is(failed.Err, context.DeadlineExceeded) && !errors.As(failed.Err, &rejoins) {
				out <- fmt.Sprintf("@\t%s\tfailed\t%s: %v\n", name, failed.Topic, failed.Err)
			}
		}
		lines := strings.Builder{}
		fetches.EachRecord(func(record *kgo.Record) {
			value, _, _ := strings.Cut(string(record.Value), "|")
			fmt.Fprintf(&lines, "@\t%s\trecord\t%s\t%d\t%s\n", name, record.Topic, record.Offset, value)
		})
		if lines.Len() > 0 {
			out <- lines.String()
		}
	}
}
