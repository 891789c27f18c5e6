/*
 * Reads a topic with Kafka's own Java client: a line of JSON for each record, as
 * read_topic.py does.
 *
 * Usage: java -cp JARS ReadTopic.java BROKERS TOPIC
 */

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

class ReadTopic {
    static String hex(byte[] bytes) {
        return bytes == null ? "null" : "\"" + HexFormat.of().formatHex(bytes) + "\"";
    }

    static void print(ConsumerRecord<byte[], byte[]> record) {
        List<String> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add("[" + hex(header.key().getBytes(StandardCharsets.UTF_8)) + ", " + hex(header.value()) + "]");
        }
        System.out.printf("{\"partition\": %d, \"offset\": %d, \"timestamp\": %d, \"create_time\": %b, "
            + "\"key\": %s, \"value\": %s, \"headers\": [%s]}%n",
            record.partition(), record.offset(), record.timestamp(),
            record.timestampType() == TimestampType.CREATE_TIME,
            hex(record.key()), hex(record.value()), String.join(", ", headers));
    }

    public static void main(String[] args) {
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0], "enable.auto.commit", "false");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            var partitions = consumer.partitionsFor(args[1]).stream()
                .map(info -> new TopicPartition(args[1], info.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            var end = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(partition -> consumer.position(partition) < end.get(partition))) {
                consumer.poll(Duration.ofSeconds(1)).forEach(ReadTopic::print);
            }
        }
    }
}
