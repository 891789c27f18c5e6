/*
 * Writes a record for each key with Kafka's own Java producer, and says in which
 * partition it put it: a line "KEY PARTITION" for each.  Keys are hexadecimal; a
 * hyphen is the empty key.
 *
 * Usage: java -cp JARS PutKeys.java BROKERS TOPIC KEY...
 */

import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

class PutKeys {
    public static void main(String[] args) throws Exception {
        List<Future<RecordMetadata>> reports = new ArrayList<>();
        try (var producer = new KafkaProducer<>(Map.<String, Object>of("bootstrap.servers", args[0]),
                new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int i = 2; i < args.length; i++) {
                byte[] key = HexFormat.of().parseHex(args[i].equals("-") ? "" : args[i]);
                reports.add(producer.send(new ProducerRecord<>(args[1], key, new byte[0])));
            }
        }
        for (int i = 2; i < args.length; i++) {
            System.out.println(args[i] + " " + reports.get(i - 2).get().partition());
        }
    }
}
