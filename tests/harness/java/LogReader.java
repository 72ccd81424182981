import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Reads topics until it is stopped, as tests/harness/log_readers.py describes. */
public class LogReader implements Runnable {
    private static volatile boolean wantsPause;
    private static volatile boolean isStopped;

    private final String name;
    private final String mode;
    private final List<String> topics;
    private final Properties properties = new Properties();

    private LogReader(String servers, String prefix, List<String> topics, String[] reader) {
        this.name = reader[0];
        this.mode = reader[2];
        this.topics = topics;
        properties.put("bootstrap.servers", servers);
        properties.put("isolation.level", reader[1]);
        if (mode.equals("assign")) {
            properties.put("auto.offset.reset", "none");
        } else {
            properties.put("group.id", prefix + name);
            properties.put("auto.offset.reset", "earliest");
            properties.put("auto.commit.interval.ms", "1000");
        }
        if (!reader[3].equals("0")) {
            properties.put("metadata.max.age.ms", reader[3]);
        }
        if (mode.equals("consumer")) {
            properties.put("group.protocol", "consumer");
        }
        properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int index = 3; index < arguments.length; index++) {
            String[] reader = arguments[index].split(":");
            List<String> topics = List.of(arguments[2].split(","));
            threads.add(new Thread(new LogReader(arguments[0], arguments[1], topics, reader)));
        }
        threads.forEach(Thread::start);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            wantsPause = line.equals("pause");
        }
        isStopped = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }

    @Override
    public void run() {
        try (KafkaConsumer<byte[], String> consumer = new KafkaConsumer<>(properties)) {
            start(consumer);
            boolean isPaused = false;
            while (!isStopped) {
                if (isPaused != wantsPause) {
                    isPaused = !isPaused;
                    if (isPaused) {
                        consumer.pause(consumer.assignment());
                    } else {
                        consumer.resume(consumer.paused());
                    }
                    say(isPaused ? "paused" : "resumed");
                }
                StringBuilder lines = new StringBuilder();
                for (ConsumerRecord<byte[], String> record : consumer.poll(Duration.ofMillis(200))) {
                    String value = record.value().substring(0, record.value().indexOf('|'));
                    lines.append(String.join(
                        "\t", "@", name, "record", record.topic(), "" + record.offset(), value));
                    lines.append('\n');
                }
                System.out.print(lines);
            }
        } catch (RuntimeException failure) {
            say("failed\t" + failure);
        }
    }

    private void start(KafkaConsumer<byte[], String> consumer) {
        if (!mode.equals("assign")) {
            consumer.subscribe(topics, new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                    say("assigned");
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {}
            });
            return;
        }
        List<TopicPartition> partitions = new ArrayList<>();
        topics.forEach(topic -> partitions.add(new TopicPartition(topic, 0)));
        consumer.assign(partitions);
        partitions.forEach(partition -> consumer.seek(partition, 0));
    }

    private void say(String words) {
        System.out.print("@\t" + name + "\t" + words + "\n");
    }
}
