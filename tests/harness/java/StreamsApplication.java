import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;

/**
 * Applications of Kafka Streams that read "orders" and run until SIGTERM.
 *
 * <p>Arguments: properties files, one for each application. Output topics are the application's id
 * and "-upper", "-counts" and "-buckets" or, with the property "tables", "-joined" and "-counts".
 * With "stall.at", an application writes the file of "stall.file" and stops processing when it has
 * sent everything for the order with this number.
 */
public class StreamsApplication {
    public static void main(String[] arguments) throws Exception {
        List<KafkaStreams> applications = new ArrayList<>();
        for (String file : arguments) {
            Properties properties = new Properties();
            try (Reader reader = Files.newBufferedReader(Path.of(file))) {
                properties.load(reader);
            }
            properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
            properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
            StreamsBuilder builder = new StreamsBuilder();
            build(builder, properties);
            KafkaStreams one = new KafkaStreams(builder.build(properties), properties);
            one.setUncaughtExceptionHandler(error -> {
                error.printStackTrace();
                Runtime.getRuntime().halt(3);
                return null;
            });
            applications.add(one);
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            applications.forEach(one -> one.close(Duration.ofSeconds(30)));
        }));
        applications.forEach(KafkaStreams::start);
    }

    private static void build(StreamsBuilder builder, Properties properties) {
        String id = properties.getProperty("application.id");
        KStream<String, String> orders = builder.stream("orders");
        if (properties.containsKey("tables")) {
            KTable<String, String> rates = builder.table("rates", Materialized.as("rates"));
            GlobalKTable<String, String> prices = builder.globalTable("prices");
            orders.mapValues(StreamsApplication::number)
                .leftJoin(rates, (order, rate) -> order + "|" + name(rate))
                .leftJoin(prices, (key, order) -> key, (order, price) -> order + "|" + name(price))
                .to(id + "-joined");
        } else {
            orders.mapValues(order -> order.toUpperCase()).to(id + "-upper");
            orders.map((key, order) -> KeyValue.pair("b" + bucket(order), order))
                .groupByKey(Grouped.as("bucket"))
                .count()
                .toStream()
                .mapValues(count -> count.toString())
                .to(id + "-buckets");
        }
        orders.groupByKey()
            .count()
            .toStream()
            .mapValues(count -> count.toString())
            .to(id + "-counts");
        String last = properties.getProperty("stall.at");
        if (last != null) { // the last branch: the others have got the order
            Path file = Path.of(properties.getProperty("stall.file"));
            orders.foreach((key, order) -> stall(number(order).equals(last), file));
        }
    }

    private static String number(String order) {
        return order.replace("\"", "").substring(0, 4);
    }

    private static String name(String value) {
        return value == null ? null : value.split(" ")[0];
    }

    private static int bucket(String order) {
        return Integer.parseInt(number(order)) % 3;
    }

    private static void stall(boolean now, Path file) {
        if (now) {
            try {
                Files.createFile(file);
                Thread.sleep(Long.MAX_VALUE);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
