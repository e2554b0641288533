import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What one scenario has: clients of a broker, closed at its end, and words for what must hold. */
final class World implements AutoCloseable {
    static final Duration POLL = Duration.ofMillis(50);
    private static final long DEADLINE_S = 20;

    final String bootstrap;
    private final Deque<AutoCloseable> open = new ArrayDeque<>();
    private Admin admin;

    World(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    // Clients

    Admin admin() {
        if (admin == null) {
            admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
            open.push(admin);
        }
        return admin;
    }

    /** A producer of strings; settings in pairs of name and value. */
    KafkaProducer<String, String> producer(Object... settings) {
        Map<String, Object> all = settings("delivery.timeout.ms", 20_000, "request.timeout.ms", 15_000);
        all.putAll(settings(settings));
        var producer = new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
        open.push(() -> producer.close(Duration.ofSeconds(1)));
        return producer;
    }

    /** A consumer of strings that starts at the beginning and commits when it is told to. */
    KafkaConsumer<String, String> consumer(Object... settings) {
        Map<String, Object> all = settings(
            "auto.offset.reset", "earliest", "enable.auto.commit", false, "heartbeat.interval.ms", 100,
            "session.timeout.ms", 10_000, "metadata.max.age.ms", 500, "allow.auto.create.topics", false,
            "fetch.max.wait.ms", 100); // a consumer closes when its last fetch is answered
        all.putAll(settings(settings));
        var consumer = new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
        open.push(() -> consumer.close(CloseOptions.timeout(Duration.ofSeconds(5))));
        return consumer;
    }

    private Map<String, Object> settings(Object... pairs) {
        Map<String, Object> all = new HashMap<>();
        all.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) {
            all.put((String) pairs[i], pairs[i + 1]);
        }
        return all;
    }

    @Override
    public void close() {
        while (!open.isEmpty()) {
            try {
                open.pop().close();
            } catch (Exception failure) {
                System.err.println("closing: " + failure);
            }
        }
    }

    // Things to work with

    String unique(String name) {
        return name + "-" + UUID.randomUUID().toString().substring(0, 13);
    }

    String topic() throws Exception {
        return topic(1, Map.of());
    }

    String topic(int partitions) throws Exception {
        return topic(partitions, Map.of());
    }

    String topic(int partitions, Map<String, String> settings) throws Exception {
        String name = unique("java");
        var topic = new NewTopic(name, Optional.of(partitions), Optional.empty()).configs(settings);
        get(admin().createTopics(List.of(topic)).all());
        return name;
    }

    /** Writes value-0, value-1 and so on to a partition. */
    void fill(String topic, int partition, int count) throws Exception {
        var producer = producer("linger.ms", 10);
        var sent = new ArrayList<java.util.concurrent.Future<RecordMetadata>>();
        for (int i = 0; i < count; i++) {
            sent.add(producer.send(new ProducerRecord<>(topic, partition, null, "value-" + i)));
        }
        for (var future : sent) {
            future.get(DEADLINE_S, TimeUnit.SECONDS);
        }
        producer.close();
    }

    List<ConsumerRecord<String, String>> read(KafkaConsumer<String, String> consumer, int count)
            throws Exception {
        var records = new ArrayList<ConsumerRecord<String, String>>();
        until(count + " records", () -> {
            consumer.poll(POLL).forEach(records::add);
            return records.size() >= count;
        });
        return records;
    }

    // What must hold

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(DEADLINE_S, TimeUnit.SECONDS);
    }

    static void same(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    static void that(String rule, boolean holds) {
        if (!holds) {
            throw new AssertionError("not so: " + rule);
        }
    }

    /** The work fails with this error, on its own or as the cause. */
    static <E extends Exception> E refused(Class<E> kind, Callable<?> work) throws Exception {
        try {
            work.call();
        } catch (Exception failure) {
            Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
            if (kind.isInstance(cause)) {
                return kind.cast(cause);
            }
            throw failure;
        }
        throw new AssertionError("not refused with " + kind.getSimpleName());
    }

    static void until(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE_S);
        while (!condition.call()) {
            that("it happened in time: " + what, System.nanoTime() < deadline);
        }
    }
}
