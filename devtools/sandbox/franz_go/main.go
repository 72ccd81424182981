// Reads partitions with franz-go, and prints their records.
//
// Arguments: bootstrap servers, isolation level, max.partition.fetch.bytes, and for each partition
// TOPIC:PARTITION:NUMBER, where NUMBER is the expected number of records. After the last of them it
// waits for half a second for further ones. With the argument group=NAME it is a member of that group
// instead: it reads all partitions of the topics, ends after the expected number of records, and
// commits the offsets after them. Prints a line for each record, in the form that
// tests/harness/record_lines.py parses.
//
// With `log` as first argument, it reads topics until it is stopped: see log.go.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func text(data []byte) string {
	if data == nil {
		return "-"
	}
	return "=" + base64.StdEncoding.EncodeToString(data)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	if os.Args[1] == "log" {
		readLog(os.Args[2:])
		return
	}
	isolation := kgo.ReadUncommitted()
	if os.Args[2] == "read_committed" {
		isolation = kgo.ReadCommitted()
	}
	most, err := strconv.Atoi(os.Args[3])
	check(err)
	expected := 0
	starts := map[string]map[int32]kgo.Offset{}
	group := ""
	for _, argument := range os.Args[4:] {
		if name, isGroup := strings.CutPrefix(argument, "group="); isGroup {
			group = name
			continue
		}
		words := strings.Split(argument, ":")
		partition, err := strconv.Atoi(words[1])
		check(err)
		number, err := strconv.Atoi(words[2])
		check(err)
		expected += number
		if starts[words[0]] == nil {
			starts[words[0]] = map[int32]kgo.Offset{}
		}
		starts[words[0]][int32(partition)] = kgo.NewOffset().AtStart()
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(os.Args[1]),
		kgo.FetchIsolationLevel(isolation),
		kgo.FetchMaxPartitionBytes(int32(most)),
		kgo.FetchMaxWait(100 * time.Millisecond),
	}
	if group == "" {
		options = append(options, kgo.ConsumePartitions(starts))
	} else {
		topics := []string{}
		for topic := range starts {
			topics = append(topics, topic)
		}
		options = append(options, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topics...),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	}
	client, err := kgo.NewClient(options...)
	check(err)
	defer client.Close()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	read := []*kgo.Record{}
	for count := 0; ; {
		wait := 60 * time.Second
		if group != "" && count >= expected {
			check(client.CommitRecords(context.Background(), read...))
			return
		}
		if count >= expected {
			wait = 500 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		most := 1 << 30
		if group != "" {
			most = expected - count
		}
		fetches := client.PollRecords(ctx, most)
		expired := ctx.Err() != nil
		cancel()
		if expired {
			return
		}
		for _, failed := range fetches.Errors() {
			check(fmt.Errorf("%s-%d: %w", failed.Topic, failed.Partition, failed.Err))
		}
		fetches.EachRecord(func(record *kgo.Record) {
			count++
			if group != "" {
				read = append(read, record)
			}
			headers := []string{}
			for _, header := range record.Headers {
				headers = append(headers, text([]byte(header.Key))+":"+text(header.Value))
			}
			fmt.Fprintf(out, "%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n",
				record.Topic, record.Partition, record.Offset, record.Timestamp.UnixMilli(),
				record.Attrs.TimestampType(), text(record.Key), text(record.Value),
				strings.Join(headers, ","))
		})
	}
}
