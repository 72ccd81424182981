import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;

/**
 * Subscribes to a topic as the only member of a group, reads, commits, and leaves.
 *
 * <p>Arguments: bootstrap servers, group, topic, number of records, seconds to wait for them, group
 * protocol (classic or consumer). Prints "record PARTITION OFFSET" for each record.
 */
public class GroupSubscriber {
    public static void main(String[] arguments) {
        int wanted = Integer.parseInt(arguments[3]);
        long deadline = System.nanoTime() + Long.parseLong(arguments[4]) * 1_000_000_000L;
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[1]);
        properties.put("group.protocol", arguments[5]);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("max.poll.records", "20");
        String bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        properties.put("key.deserializer", bytes);
        properties.put("value.deserializer", bytes);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
            consumer.subscribe(List.of(arguments[2]));
            int count = 0;
            while (count < wanted && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    System.out.println("record " + record.partition() + " " + record.offset());
                    count++;
                }
                if (count > 0) {
                    consumer.commitSync();
                }
            }
        }
    }
}
