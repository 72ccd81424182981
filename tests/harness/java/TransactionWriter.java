import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Commits transactions over all partitions of a topic, each by itself.
 *
 * <p>Arguments: bootstrap servers, transactional id, topic, number of transactions, and of each
 * partition the size of a record. The value of each record begins with the transaction's number.
 */
public class TransactionWriter {
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("transactional.id", arguments[1]);
        properties.put("linger.ms", "0");
        String bytes = "org.apache.kafka.common.serialization.ByteArraySerializer";
        properties.put("key.serializer", bytes);
        properties.put("value.serializer", bytes);
        int count = Integer.parseInt(arguments[3]);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties)) {
            producer.initTransactions();
            for (int number = 0; number < count; number++) {
                producer.beginTransaction();
                for (int partition = 0; partition + 4 < arguments.length; partition++) {
                    byte[] value = new byte[Integer.parseInt(arguments[partition + 4])];
                    byte[] text = (number + " ").getBytes();
                    System.arraycopy(text, 0, value, 0, text.length);
                    producer.send(new ProducerRecord<>(arguments[2], partition, null, value));
                }
                producer.commitTransaction();
            }
        }
    }
}
