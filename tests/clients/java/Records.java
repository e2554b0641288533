import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;

/** Records come back as they were written. */
final class Records {
    private static final int LARGEST_VALUE = 1_048_588 - 61 - 11; // see test_records.py

    static void register(Map<String, Driver.Scenario> scenarios) {
        for (String acks : List.of("0", "1", "all")) {
            scenarios.put("records-acks-" + acks, (world, none) -> acks(world, acks));
        }
        scenarios.put("records-headers-and-nulls", Records::headersAndNulls);
        scenarios.put("records-timestamps", Records::timestamps);
        scenarios.put("records-largest", Records::largest);
        scenarios.put("records-too-large", Records::tooLarge);
        scenarios.put("records-too-large-batch-is-split", Records::splitBatch);
        scenarios.put("records-idempotent", Records::idempotent);
        scenarios.put("records-default-producer", Records::defaultProducer);
        scenarios.put("records-auto-creation", Records::autoCreation);
        scenarios.put("records-invalid-topic", Records::invalidTopic);
        scenarios.put("records-unknown-topic", Records::unknownTopic);
    }

    private static Object acks(World world, String acks) throws Exception {
        String topic = world.topic(3);
        var producer = world.producer("acks", acks, "enable.idempotence", false, "batch.size", 500);
        for (int i = 0; i < 300; i++) {
            producer.send(new ProducerRecord<>(topic, i % 3, "key", "value-" + i));
        }
        producer.flush();
        var consumer = world.consumer();
        consumer.assign(partitions(topic, 3));
        var records = world.read(consumer, 300);
        World.same(300, records.size());
        for (int partition = 0; partition < 3; partition++) {
            var values = new ArrayList<String>();
            var expected = new ArrayList<String>();
            for (ConsumerRecord<String, String> record : records) {
                if (record.partition() == partition) {
                    expected.add("value-" + (3 * values.size() + partition));
                    values.add(record.value());
                }
            }
            World.same(expected, values);
        }
        return null;
    }

    private static Object headersAndNulls(World world, List<String> none) throws Exception {
        String topic = world.topic();
        var producer = world.producer();
        var full = new ProducerRecord<>(topic, "k", "v");
        full.headers().add("trace", bytes("1")).add("null", null).add("trace", bytes("2")).add("empty", bytes(""));
        producer.send(full).get();
        producer.send(new ProducerRecord<>(topic, null, "no key")).get();
        producer.send(new ProducerRecord<>(topic, "no value", null)).get();
        producer.send(new ProducerRecord<>(topic, null, null)).get();
        producer.send(new ProducerRecord<>(topic, "", "")).get();
        var records = world.read(assigned(world, topic), 5);
        var headers = new ArrayList<String>();
        for (Header header : records.get(0).headers()) {
            headers.add(header.key() + "=" + (header.value() == null ? null : new String(header.value())));
        }
        World.same(List.of("trace=1", "null=null", "trace=2", "empty="), headers);
        var pairs = records.stream().map(record -> record.key() + ":" + record.value()).toList();
        World.same(List.of("k:v", "null:no key", "no value:null", "null:null", ":"), pairs);
        return null;
    }

    private static Object timestamps(World world, List<String> none) throws Exception {
        String topic = world.topic();
        RecordMetadata told = world.producer().send(new ProducerRecord<>(topic, 0, 1_600_000_000_123L, "k", "v")).get();
        World.same(1_600_000_000_123L, told.timestamp());
        var record = world.read(assigned(world, topic), 1).get(0);
        World.same(1_600_000_000_123L, record.timestamp());
        World.same(TimestampType.CREATE_TIME, record.timestampType());

        String stamped = world.topic(1, Map.of("message.timestamp.type", "LogAppendTime"));
        long before = System.currentTimeMillis();
        told = world.producer().send(new ProducerRecord<>(stamped, 0, 1_600_000_000_123L, "k", "v")).get();
        record = world.read(assigned(world, stamped), 1).get(0);
        World.same(TimestampType.LOG_APPEND_TIME, record.timestampType());
        World.that("the broker's clock was used", record.timestamp() >= before);
        World.same(record.timestamp(), told.timestamp());
        return null;
    }

    private static Object largest(World world, List<String> none) throws Exception {
        String topic = world.topic();
        String value = "x".repeat(LARGEST_VALUE);
        world.producer("max.request.size", 10_000_000).send(new ProducerRecord<>(topic, value)).get();
        World.same(value, world.read(assigned(world, topic), 1).get(0).value());
        return null;
    }

    private static Object tooLarge(World world, List<String> none) throws Exception {
        String topic = world.topic();
        var producer = world.producer("max.request.size", 10_000_000);
        var record = new ProducerRecord<String, String>(topic, "x".repeat(LARGEST_VALUE + 1));
        World.refused(RecordTooLargeException.class, () -> producer.send(record).get());
        World.same(0L, producer.send(new ProducerRecord<>(topic, "small")).get().offset());
        return null;
    }

    /** Many small records in one batch that is too large: the client splits it and tries again. */
    private static Object splitBatch(World world, List<String> none) throws Exception {
        String topic = world.topic(1, Map.of("max.message.bytes", "20000"));
        var producer = world.producer("batch.size", 200_000, "linger.ms", 500);
        var sent = new ArrayList<Future<RecordMetadata>>();
        for (int i = 0; i < 100; i++) {
            sent.add(producer.send(new ProducerRecord<>(topic, i + "x".repeat(1_000))));
        }
        producer.flush();
        for (int i = 0; i < 100; i++) {
            World.same((long) i, sent.get(i).get().offset());
        }
        var records = world.read(assigned(world, topic), 100);
        for (int i = 0; i < 100; i++) {
            World.same(i + "x".repeat(1_000), records.get(i).value());
        }
        return null;
    }

    private static Object idempotent(World world, List<String> none) throws Exception {
        String topic = world.topic();
        var producer = world.producer("enable.idempotence", true, "batch.size", 200);
        var sent = new ArrayList<Future<RecordMetadata>>();
        for (int i = 0; i < 500; i++) {
            sent.add(producer.send(new ProducerRecord<>(topic, "value-" + i)));
        }
        producer.flush();
        for (int i = 0; i < 500; i++) {
            World.same((long) i, sent.get(i).get().offset());
        }
        var producers = World.get(world.admin().describeProducers(partitions(topic, 1)).all())
            .get(new TopicPartition(topic, 0)).activeProducers();
        World.same(1, producers.size());
        World.same(499, producers.get(0).lastSequence());
        World.that("it has an id", producers.get(0).producerId() >= 0);
        return null;
    }

    /** With no setting but the address, as in every tutorial. */
    private static Object defaultProducer(World world, List<String> none) throws Exception {
        String topic = world.topic();
        world.producer().send(new ProducerRecord<>(topic, "k", "v")).get();
        World.same("v", world.read(assigned(world, topic), 1).get(0).value());
        return null;
    }

    private static Object autoCreation(World world, List<String> none) throws Exception {
        String topic = world.unique("created");
        world.producer().send(new ProducerRecord<>(topic, "first")).get();
        World.same("first", world.read(assigned(world, topic), 1).get(0).value());
        return null;
    }

    private static Object invalidTopic(World world, List<String> none) throws Exception {
        var producer = world.producer();
        World.refused(InvalidTopicException.class, () -> producer.send(new ProducerRecord<>("no spaces", "v")).get());
        return null;
    }

    /** For a broker that creates no topics. */
    private static Object unknownTopic(World world, List<String> none) throws Exception {
        var producer = world.producer("max.block.ms", 1_000);
        World.refused(TimeoutException.class, () -> producer.send(new ProducerRecord<>(world.unique("none"), "v")).get());
        return null;
    }

    static KafkaConsumer<String, String> assigned(World world, String topic, Object... settings) {
        var consumer = world.consumer(settings);
        consumer.assign(partitions(topic, 1));
        return consumer;
    }

    static List<TopicPartition> partitions(String topic, int count) {
        var partitions = new ArrayList<TopicPartition>();
        for (int i = 0; i < count; i++) {
            partitions.add(new TopicPartition(topic, i));
        }
        return partitions;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
