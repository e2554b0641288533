import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Writes and reads on behalf of the tests, which compare with what other clients wrote and read. */
final class Exchange {
    private final Map<String, Member> members = new ConcurrentHashMap<>();

    Exchange(Map<String, Driver.Scenario> scenarios) {
        scenarios.put("exchange-write", Exchange::write);
        scenarios.put("exchange-read", Exchange::read);
        scenarios.put("exchange-join", this::join);
        scenarios.put("exchange-member", this::member);
        scenarios.put("exchange-leave", this::leave);
    }

    void close() {
        members.values().forEach(Member::stop);
    }

    /** Arguments: topic, codec, then key and value of each record. Every record has the header "from". */
    private static Object write(World world, List<String> arguments) throws Exception {
        var producer = world.producer("compression.type", arguments.get(1), "linger.ms", 50, "batch.size", 1_000_000);
        for (int i = 2; i < arguments.size(); i += 2) {
            var record = new ProducerRecord<>(arguments.get(0), 0, arguments.get(i), arguments.get(i + 1));
            record.headers().add("from", "java".getBytes(StandardCharsets.UTF_8));
            producer.send(record);
        }
        producer.flush();
        return null;
    }

    /** Argument: topic. Returns all of partition 0: offset, key, value and headers of each record. */
    private static Object read(World world, List<String> arguments) throws Exception {
        var at = new TopicPartition(arguments.get(0), 0);
        var consumer = world.consumer();
        consumer.assign(List.of(at));
        int count = (int) (long) consumer.endOffsets(List.of(at)).get(at);
        var text = new StringBuilder();
        for (ConsumerRecord<String, String> record : world.read(consumer, count)) {
            text.append(record.offset()).append(' ').append(encoded(record.key())).append(' ').append(encoded(record.value()));
            record.headers().forEach(header -> text.append(' ').append(header.key()).append(' ')
                .append(Base64.getEncoder().encodeToString(header.value())));
            text.append('\t');
        }
        return text;
    }

    private static String encoded(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    /** Arguments: group, topic. Joins in the background. */
    private Object join(World world, List<String> arguments) {
        members.put(arguments.get(0), new Member(world.bootstrap, arguments.get(0), arguments.get(1)));
        return null;
    }

    /** Argument: group. Returns the member's partitions, a bar, and the values it has received. */
    private Object member(World world, List<String> arguments) {
        Member member = members.get(arguments.get(0));
        var partitions = new ArrayList<String>();
        member.assignment.forEach(at -> partitions.add(Integer.toString(at.partition())));
        return String.join(" ", partitions) + "|" + String.join(" ", member.values);
    }

    private Object leave(World world, List<String> arguments) {
        Member member = members.remove(arguments.get(0));
        if (member != null) {
            member.stop();
        }
        return null;
    }

    private static final class Member {
        private final Thread thread;
        final List<String> values = Collections.synchronizedList(new ArrayList<>());
        volatile List<TopicPartition> assignment = List.of();
        private volatile boolean stopped = false;

        Member(String bootstrap, String group, String topic) {
            World world = new World(bootstrap);
            KafkaConsumer<String, String> consumer = world.consumer(
                "group.id", group, "partition.assignment.strategy", RangeAssignor.class.getName());
            consumer.subscribe(List.of(topic));
            thread = new Thread(() -> {
                try (world) {
                    while (!stopped) {
                        consumer.poll(World.POLL).forEach(record -> values.add(record.value()));
                        assignment = List.copyOf(consumer.assignment());
                    }
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        void stop() {
            stopped = true;
            try {
                thread.join(10_000);
            } catch (InterruptedException ignored) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
