import java.io.FileReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * Reads one partition from its start to its present end, without a group.
 *
 * <p>Arguments: file with the consumer's properties, topic, partition. Prints "record OFFSET" for
 * each record, or "failed CLASS MESSAGE".
 */
public class PartitionReader {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.load(new FileReader(arguments[0]));
        String bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        properties.put("key.deserializer", bytes);
        properties.put("value.deserializer", bytes);
        TopicPartition partition = new TopicPartition(arguments[1], Integer.parseInt(arguments[2]));
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println("record " + record.offset());
                }
            }
        } catch (org.apache.kafka.common.KafkaException failure) {
            System.out.println(
                "failed " + failure.getClass().getSimpleName() + " " + failure.getMessage());
        }
    }
}
