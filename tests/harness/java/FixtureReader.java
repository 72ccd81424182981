import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/**
 * Reads partitions to their ends, without a group, and prints their records.
 *
 * <p>Arguments: bootstrap servers, isolation level, max.partition.fetch.bytes, and for each partition
 * TOPIC:PARTITION:NUMBER; the number is not used. Prints a line for each record, in the form that
 * tests/harness/record_lines.py parses.
 */
public class FixtureReader {
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("isolation.level", arguments[1]);
        properties.put("max.partition.fetch.bytes", arguments[2]);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "none");
        properties.put("fetch.max.wait.ms", "100");
        String bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        properties.put("key.deserializer", bytes);
        properties.put("value.deserializer", bytes);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
            for (int index = 3; index < arguments.length; index++) {
                String[] words = arguments[index].split(":");
                TopicPartition partition = new TopicPartition(words[0], Integer.parseInt(words[1]));
                List<TopicPartition> assigned = List.of(partition);
                consumer.assign(assigned);
                consumer.seekToBeginning(assigned);
                long end = consumer.endOffsets(assigned).get(partition);
                long deadline = System.nanoTime() + 60_000_000_000L;
                while (consumer.position(partition) < end) {
                    if (System.nanoTime() > deadline) {
                        throw new IllegalStateException("no end of " + partition);
                    }
                    for (ConsumerRecord<byte[], byte[]> record
                        : consumer.poll(Duration.ofMillis(500))) {
                        System.out.println(line(record));
                    }
                }
            }
        }
    }

    private static String line(ConsumerRecord<byte[], byte[]> record) {
        List<String> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(text(header.key().getBytes()) + ":" + text(header.value()));
        }
        return String.join(
            "\t", record.topic(), "" + record.partition(), "" + record.offset(),
            "" + record.timestamp(), "" + record.timestampType().id, text(record.key()),
            text(record.value()), String.join(",", headers));
    }

    private static String text(byte[] data) {
        return data == null ? "-" : "=" + Base64.getEncoder().encodeToString(data);
    }
}
