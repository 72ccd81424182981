import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * A job of Flink that counts the records of "orders" by the last digit of their number, and writes
 * "DIGIT NUMBER COUNT" exactly once to another topic, with the digit as key.
 *
 * <p>Arguments: a file with properties of the source, the address to write to, group, topic to write
 * to, folder of the checkpoints, and the checkpoint to continue at, if any.
 */
public class FlinkApplication {
    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "300 ms");
        settings.setString("execution.checkpointing.dir", "file://" + arguments[4]);
        settings.setString(
            "execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        if (arguments.length > 5) {
            settings.setString("execution.state-recovery.path", "file://" + arguments[5]);
        }
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.createLocalEnvironment(1, settings);
        KafkaSource<String> source =
            KafkaSource.<String>builder()
                .setProperties(load(arguments[0]))
                .setTopics("orders")
                .setGroupId(arguments[2])
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .setProperty("isolation.level", "read_committed")
                .build();
        KafkaSink<String> sink =
            KafkaSink.<String>builder()
                .setBootstrapServers(arguments[1])
                .setRecordSerializer(
                    KafkaRecordSerializationSchema.builder()
                        .setTopic(arguments[3])
                        .setKeySerializationSchema(
                            (SerializationSchema<String>) line -> line.substring(0, 1).getBytes())
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(arguments[3])
                .setProperty("transaction.timeout.ms", "60000")
                .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "orders")
            .keyBy(order -> number(order).substring(3))
            .map(new Count())
            .sinkTo(sink);
        environment.execute("orders");
    }

    private static Properties load(String file) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(file))) {
            properties.load(reader);
        }
        return properties;
    }

    private static String number(String order) {
        return order.replace("\"", "").substring(0, 4);
    }

    private static class Count extends RichMapFunction<String, String> {
        private static final long serialVersionUID = 1;
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Long.class));
        }

        @Override
        public String map(String order) throws Exception {
            long next = count.value() == null ? 1 : count.value() + 1;
            count.update(next);
            return number(order).substring(3) + " " + number(order) + " " + next;
        }
    }
}
