import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.NoOffsetForPartitionException;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Reading without a group: positions, times, many partitions. */
final class Consuming {
    static void register(Map<String, Driver.Scenario> scenarios) {
        scenarios.put("consume-seek", Consuming::seek);
        scenarios.put("consume-seek-by-time", Consuming::seekByTime);
        scenarios.put("consume-reset-policies", Consuming::resetPolicies);
        scenarios.put("consume-fetch-sessions", Consuming::fetchSessions);
        scenarios.put("consume-read-committed", Consuming::readCommitted);
        scenarios.put("consume-small-fetches", Consuming::smallFetches);
        scenarios.put("consume-lag", Consuming::lag);
    }

    private static Object seek(World world, List<String> none) throws Exception {
        String topic = world.topic();
        var at = new TopicPartition(topic, 0);
        world.fill(topic, 0, 10);
        var consumer = Records.assigned(world, topic);
        consumer.seek(at, 7);
        World.same("value-7", world.read(consumer, 3).get(0).value());
        consumer.seekToBeginning(List.of(at));
        World.same("value-0", world.read(consumer, 10).get(0).value());
        consumer.seekToEnd(List.of(at));
        World.same(10L, consumer.position(at));
        World.that("nothing is after the end", consumer.poll(World.POLL).isEmpty());
        world.fill(topic, 0, 1);
        World.same(10L, world.read(consumer, 1).get(0).offset());
        return null;
    }

    private static Object seekByTime(World world, List<String> none) throws Exception {
        String topic = world.topic(2);
        var producer = world.producer();
        for (int i = 0; i < 10; i++) {
            producer.send(new ProducerRecord<>(topic, 0, 1_000_000L + i * 1_000, null, "value-" + i)).get();
        }
        var at = new TopicPartition(topic, 0);
        var empty = new TopicPartition(topic, 1);
        var consumer = world.consumer();
        var found = consumer.offsetsForTimes(Map.of(at, 1_003_500L, empty, 1_003_500L));
        World.same(4L, found.get(at).offset());
        World.same(1_004_000L, found.get(at).timestamp());
        World.that("an empty partition has no such offset", found.get(empty) == null);
        World.that("the future has none", consumer.offsetsForTimes(Map.of(at, 2_000_000L)).get(at) == null);
        World.same(0L, consumer.offsetsForTimes(Map.of(at, 0L)).get(at).offset());
        consumer.assign(List.of(at));
        consumer.seek(at, found.get(at).offset());
        World.same("value-4", world.read(consumer, 6).get(0).value());
        World.same(Map.of(at, 0L, empty, 0L), consumer.beginningOffsets(List.of(at, empty)));
        World.same(Map.of(at, 10L, empty, 0L), consumer.endOffsets(List.of(at, empty)));
        return null;
    }

    private static Object resetPolicies(World world, List<String> none) throws Exception {
        String topic = world.topic();
        var at = new TopicPartition(topic, 0);
        world.fill(topic, 0, 10);
        World.get(world.admin().deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(4))).all());

        var earliest = Records.assigned(world, topic, "auto.offset.reset", "earliest");
        earliest.seek(at, 1); // deleted: the policy says where to go on
        World.same(4L, world.read(earliest, 6).get(0).offset());

        var latest = Records.assigned(world, topic, "auto.offset.reset", "latest");
        World.same(10L, latest.position(at));

        var strict = Records.assigned(world, topic, "auto.offset.reset", "none");
        strict.seek(at, 99);
        World.refused(OffsetOutOfRangeException.class, () -> world.read(strict, 1));

        var lost = Records.assigned(world, topic, "auto.offset.reset", "none", "group.id", world.unique("group"));
        World.refused(NoOffsetForPartitionException.class, () -> world.read(lost, 1));

        var byDuration = Records.assigned(world, topic, "auto.offset.reset", "by_duration:PT1H");
        World.same(4L, world.read(byDuration, 6).get(0).offset()); // KIP-1106: all of them are younger
        return null;
    }

    /** Incremental fetch sessions: 200 partitions, of which few change, and the assignment does, too. */
    private static Object fetchSessions(World world, List<String> none) throws Exception {
        int count = 200;
        String topic = world.topic(count);
        var producer = world.producer("linger.ms", 5);
        var consumer = world.consumer();
        consumer.assign(Records.partitions(topic, count));
        Map<Integer, Integer> expected = new HashMap<>();
        Map<Integer, Integer> found = new HashMap<>();
        for (int round = 0; round < 10; round++) {
            for (int i = 0; i < 20; i++) {
                int partition = (round * 37 + i * 11) % count;
                producer.send(new ProducerRecord<>(topic, partition, null, "v"));
                expected.merge(partition, 1, Integer::sum);
            }
            producer.flush();
            World.until("round " + round, () -> {
                consumer.poll(World.POLL).forEach(record -> found.merge(record.partition(), 1, Integer::sum));
                return sum(found) == sum(expected);
            });
        }
        World.same(expected, found);

        consumer.assign(Records.partitions(topic, 100)); // the session forgets half of them
        producer.send(new ProducerRecord<>(topic, 150, null, "forgotten"));
        producer.send(new ProducerRecord<>(topic, 50, null, "followed"));
        producer.flush();
        var records = world.read(consumer, 1);
        World.same("followed", records.get(records.size() - 1).value());
        consumer.assign(Records.partitions(topic, count)); // and takes them up again
        Set<String> values = new HashSet<>();
        consumer.seekToBeginning(List.of(new TopicPartition(topic, 150)));
        World.until("the forgotten one", () -> {
            consumer.poll(World.POLL).forEach(record -> values.add(record.value()));
            return values.contains("forgotten");
        });
        return null;
    }

    private static int sum(Map<Integer, Integer> counts) {
        return counts.values().stream().mapToInt(Integer::intValue).sum();
    }

    private static Object readCommitted(World world, List<String> none) throws Exception {
        String topic = world.topic();
        world.fill(topic, 0, 10);
        var consumer = Records.assigned(world, topic, "isolation.level", "read_committed");
        World.same(10, world.read(consumer, 10).size());
        var at = new TopicPartition(topic, 0);
        World.same(Map.of(at, 10L), consumer.endOffsets(List.of(at)));
        return null;
    }

    /** A fetch of few bytes still brings the first batch, however large. */
    private static Object smallFetches(World world, List<String> none) throws Exception {
        String topic = world.topic(2);
        var producer = world.producer();
        for (int i = 0; i < 6; i++) {
            producer.send(new ProducerRecord<>(topic, i % 2, null, i + "x".repeat(50_000))).get();
        }
        var consumer = world.consumer("fetch.max.bytes", 1_000, "max.partition.fetch.bytes", 1_000, "max.poll.records", 1);
        consumer.assign(Records.partitions(topic, 2));
        World.same(6, world.read(consumer, 6).size());
        return null;
    }

    private static Object lag(World world, List<String> none) throws Exception {
        String topic = world.topic();
        world.fill(topic, 0, 10);
        var at = new TopicPartition(topic, 0);
        var consumer = Records.assigned(world, topic, "max.poll.records", 3);
        world.read(consumer, 3);
        World.same(7L, consumer.currentLag(at).getAsLong());
        World.that("there is no preferred replica elsewhere", consumer.metrics().size() > 0);
        World.same(1, consumer.partitionsFor(topic).size());
        World.that("the topic is listed", consumer.listTopics().containsKey(topic));
        return null;
    }
}
