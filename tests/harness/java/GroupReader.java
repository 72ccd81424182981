import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;

/**
 * Reads on with a group where it has committed, commits, and ends.
 *
 * <p>Arguments: bootstrap servers, group, topic, number of records (up to 19 more are read and
 * committed), seconds to wait for them. Prints "record PARTITION OFFSET TIMESTAMP" for each record,
 * "committed PARTITION OFFSET EPOCH" for each partition, EPOCH -1 where the commit has none, and
 * "time PARTITION TIMESTAMP OFFSET" for the timestamps of the first and the last record: the first
 * offset of each.
 */
public class GroupReader {
    public static void main(String[] arguments) {
        String topic = arguments[2];
        int wanted = Integer.parseInt(arguments[3]);
        long deadline = System.nanoTime() + Long.parseLong(arguments[4]) * 1_000_000_000L;
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[1]);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "none");
        properties.put("isolation.level", "read_committed");
        properties.put("max.poll.records", "20");
        properties.put("max.partition.fetch.bytes", "1000"); // one batch of each partition by turns
        String bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        properties.put("key.deserializer", bytes);
        properties.put("value.deserializer", bytes);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
            Set<TopicPartition> partitions = new HashSet<>();
            consumer.partitionsFor(topic)
                .forEach(one -> partitions.add(new TopicPartition(topic, one.partition())));
            consumer.assign(partitions);
            // A group without a commit begins at the beginning; all others must find their commits.
            if (consumer.committed(partitions).values().stream().allMatch(one -> one == null)) {
                consumer.seekToBeginning(partitions);
            }
            int count = 0;
            Map<TopicPartition, Long> first = new HashMap<>();
            Map<TopicPartition, Long> last = new HashMap<>();
            while (count < wanted && System.nanoTime() < deadline) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(500));
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    System.out.println(
                        "record " + record.partition() + " " + record.offset()
                            + " " + record.timestamp());
                    count++;
                    if (record.timestamp() >= 0) { // -1 in message format v0
                        TopicPartition partition = new TopicPartition(topic, record.partition());
                        first.putIfAbsent(partition, record.timestamp());
                        last.put(partition, record.timestamp());
                    }
                }
                consumer.commitSync(); // positions with the leader epochs of the records
            }
            for (Map.Entry<TopicPartition, OffsetAndMetadata> one
                : consumer.committed(partitions).entrySet()) {
                if (one.getValue() != null) {
                    System.out.println(
                        "committed " + one.getKey().partition() + " " + one.getValue().offset()
                            + " " + one.getValue().leaderEpoch().orElse(-1));
                }
            }
            for (Map<TopicPartition, Long> times : List.of(first, last)) {
                for (Map.Entry<TopicPartition, OffsetAndTimestamp> one
                    : consumer.offsetsForTimes(times).entrySet()) {
                    System.out.println(
                        "time " + one.getKey().partition() + " " + times.get(one.getKey())
                            + " " + one.getValue().offset());
                }
            }
        }
    }
}
