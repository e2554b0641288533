import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;

/** Members come and go, and every partition always has one owner. */
final class Groups {
    static void register(Map<String, Driver.Scenario> scenarios) {
        scenarios.put("groups-range", (world, none) -> rebalance(world, RangeAssignor.class));
        scenarios.put("groups-roundrobin", (world, none) -> rebalance(world, RoundRobinAssignor.class));
        scenarios.put("groups-sticky", (world, none) -> rebalance(world, StickyAssignor.class));
        scenarios.put("groups-cooperative", (world, none) -> rebalance(world, CooperativeStickyAssignor.class));
        scenarios.put("groups-cooperative-keeps-partitions", Groups::cooperativeKeeps);
        scenarios.put("groups-eager-to-cooperative", Groups::eagerToCooperative);
        scenarios.put("groups-static-restart", Groups::staticRestart);
        scenarios.put("groups-static-fencing", Groups::staticFencing);
        scenarios.put("groups-static-removal", Groups::staticRemoval);
        scenarios.put("groups-commit-and-resume", Groups::commitAndResume);
        scenarios.put("groups-commit-after-expiry", Groups::commitAfterExpiry);
        scenarios.put("groups-session-expiry", Groups::sessionExpiry);
        scenarios.put("groups-new-partitions", Groups::newPartitions);
        scenarios.put("groups-pattern", Groups::pattern);
        scenarios.put("groups-many-members", Groups::manyMembers);
    }

    /** A member of a group, with the partitions that were taken from it. */
    private static final class Member implements ConsumerRebalanceListener {
        final KafkaConsumer<String, String> consumer;
        final List<TopicPartition> revoked = new ArrayList<>();
        int rebalances = 0;

        Member(World world, String group, String topic, Object... settings) {
            var all = new ArrayList<Object>(List.of("group.id", group));
            all.addAll(List.of(settings));
            consumer = world.consumer(all.toArray());
            if (topic != null) {
                consumer.subscribe(List.of(topic), this);
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            rebalances++;
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked.addAll(partitions);
        }

        int owns() {
            return consumer.assignment().size();
        }
    }

    /** Poll all members until each owns this many partitions, none of which another owns. */
    private static void settle(Map<Member, Integer> wanted) throws Exception {
        World.until("owned: " + wanted.values(), () -> {
            wanted.keySet().forEach(member -> member.consumer.poll(World.POLL));
            Set<TopicPartition> owned = new HashSet<>();
            int total = 0;
            for (var entry : wanted.entrySet()) {
                if (entry.getKey().owns() != entry.getValue()) {
                    return false;
                }
                owned.addAll(entry.getKey().consumer.assignment());
                total += entry.getValue();
            }
            return owned.size() == total;
        });
    }

    private static Object rebalance(World world, Class<?> assignor) throws Exception {
        String topic = world.topic(6);
        String group = world.unique("group");
        Object[] settings = {"partition.assignment.strategy", assignor.getName()};
        var first = new Member(world, group, topic, settings);
        settle(Map.of(first, 6));
        var second = new Member(world, group, topic, settings);
        settle(Map.of(first, 3, second, 3));
        var third = new Member(world, group, topic, settings);
        settle(Map.of(first, 2, second, 2, third, 2));
        first.consumer.close();
        settle(Map.of(second, 3, third, 3));
        third.consumer.unsubscribe();
        settle(Map.of(second, 6));
        return null;
    }

    private static Object cooperativeKeeps(World world, List<String> none) throws Exception {
        String topic = world.topic(4);
        String group = world.unique("group");
        Object[] settings = {"partition.assignment.strategy", CooperativeStickyAssignor.class.getName()};
        var first = new Member(world, group, topic, settings);
        settle(Map.of(first, 4));
        var second = new Member(world, group, topic, settings);
        settle(Map.of(first, 2, second, 2));
        World.same(new HashSet<>(first.revoked), second.consumer.assignment());
        World.same(2, first.revoked.size()); // those that moved, and no other
        return null;
    }

    /** A rolling change of assignors, as the documentation of the cooperative one describes it. */
    private static Object eagerToCooperative(World world, List<String> none) throws Exception {
        String topic = world.topic(4);
        String group = world.unique("group");
        String range = RangeAssignor.class.getName();
        String both = CooperativeStickyAssignor.class.getName() + "," + range;
        var eager = new Member(world, group, topic, "partition.assignment.strategy", range);
        settle(Map.of(eager, 4));
        var mixed = new Member(world, group, topic, "partition.assignment.strategy", both);
        settle(Map.of(eager, 2, mixed, 2));
        eager.consumer.close();
        settle(Map.of(mixed, 4));
        var other = new Member(world, group, topic, "partition.assignment.strategy", both);
        settle(Map.of(mixed, 2, other, 2));
        var description = World.get(world.admin().describeConsumerGroups(List.of(group)).all()).get(group);
        World.same("cooperative-sticky", description.partitionAssignor());
        return null;
    }

    private static Object staticRestart(World world, List<String> none) throws Exception {
        String topic = world.topic(4);
        String group = world.unique("group");
        var first = new Member(world, group, topic, "group.instance.id", "one");
        settle(Map.of(first, 4));
        var second = new Member(world, group, topic, "group.instance.id", "two");
        settle(Map.of(first, 2, second, 2));
        var before = new TreeSet<>(second.consumer.assignment().stream().map(TopicPartition::partition).toList());
        int rebalances = first.rebalances;
        second.consumer.close(); // a static member does not leave
        var back = new Member(world, group, topic, "group.instance.id", "two");
        settle(Map.of(first, 2, back, 2));
        World.same(before, new TreeSet<>(back.consumer.assignment().stream().map(TopicPartition::partition).toList()));
        World.same(rebalances, first.rebalances);
        return null;
    }

    private static Object staticFencing(World world, List<String> none) throws Exception {
        String topic = world.topic(2);
        String group = world.unique("group");
        var old = new Member(world, group, topic, "group.instance.id", "one");
        settle(Map.of(old, 2));
        var successor = new Member(world, group, topic, "group.instance.id", "one");
        World.refused(FencedInstanceIdException.class, () -> {
            World.until("the old one is fenced", () -> {
                successor.consumer.poll(World.POLL);
                old.consumer.poll(World.POLL);
                return false;
            });
            return null;
        });
        settle(Map.of(successor, 2));
        return null;
    }

    /** An admin sends a static member away. */
    private static Object staticRemoval(World world, List<String> none) throws Exception {
        String topic = world.topic(2);
        String group = world.unique("group");
        var gone = new Member(world, group, topic, "group.instance.id", "gone");
        var stays = new Member(world, group, topic, "group.instance.id", "stays");
        settle(Map.of(gone, 1, stays, 1));
        gone.consumer.close();
        var removal = new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("gone")));
        World.get(world.admin().removeMembersFromConsumerGroup(group, removal).all());
        settle(Map.of(stays, 2));
        return null;
    }

    private static Object commitAndResume(World world, List<String> none) throws Exception {
        String topic = world.topic();
        String group = world.unique("group");
        var at = new TopicPartition(topic, 0);
        world.fill(topic, 0, 10);
        var first = new Member(world, group, topic, "max.poll.records", 4);
        World.same(4, world.read(first.consumer, 4).size());
        first.consumer.commitSync();
        World.same(4L, first.consumer.committed(Set.of(at)).get(at).offset());
        first.consumer.commitSync(Map.of(at, new OffsetAndMetadata(5, "a note")));
        World.same("a note", first.consumer.committed(Set.of(at)).get(at).metadata());
        first.consumer.close();
        var second = new Member(world, group, topic);
        World.same(5L, world.read(second.consumer, 5).get(0).offset());

        var automatic = new Member(world, world.unique("group"), topic, "enable.auto.commit", true);
        world.read(automatic.consumer, 10);
        String name = automatic.consumer.groupMetadata().groupId();
        automatic.consumer.close(); // commits what was read
        var offsets = World.get(world.admin().listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata());
        World.same(10L, offsets.get(at).offset());
        return null;
    }

    /** A member that was given up can not commit: its partitions are another's. */
    private static Object commitAfterExpiry(World world, List<String> none) throws Exception {
        String topic = world.topic(2);
        String group = world.unique("group");
        world.fill(topic, 0, 1);
        var slow = new Member(world, group, topic, "max.poll.interval.ms", 600, "session.timeout.ms", 600);
        settle(Map.of(slow, 2));
        var other = new Member(world, group, topic);
        settle(Map.of(other, 2)); // which the slow one, not polled any more, has to give up
        var offsets = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1));
        World.refused(CommitFailedException.class, () -> {
            slow.consumer.commitSync(offsets);
            return null;
        });
        return null;
    }

    /** A static member that is gone is missed when its session ends, not before. */
    private static Object sessionExpiry(World world, List<String> none) throws Exception {
        String topic = world.topic(2);
        String group = world.unique("group");
        var stays = new Member(world, group, topic);
        var gone = new Member(world, group, topic, "group.instance.id", "gone", "session.timeout.ms", 700);
        settle(Map.of(stays, 1, gone, 1));
        long since = System.nanoTime();
        gone.consumer.close();
        settle(Map.of(stays, 2));
        long elapsed = Duration.ofNanos(System.nanoTime() - since).toMillis();
        World.that("it took most of a session, not " + elapsed + " ms", elapsed > 400);
        return null;
    }

    private static Object newPartitions(World world, List<String> none) throws Exception {
        String topic = world.topic(1);
        var member = new Member(world, world.unique("group"), topic);
        settle(Map.of(member, 1));
        World.get(world.admin().createPartitions(
            Map.of(topic, org.apache.kafka.clients.admin.NewPartitions.increaseTo(3))).all());
        settle(Map.of(member, 3));
        return null;
    }

    private static Object pattern(World world, List<String> none) throws Exception {
        String topic = world.topic(1);
        var member = new Member(world, world.unique("group"), null);
        member.consumer.subscribe(Pattern.compile(Pattern.quote(topic) + ".*"), member);
        settle(Map.of(member, 1));
        World.get(world.admin().createTopics(List.of(
            new org.apache.kafka.clients.admin.NewTopic(topic + "-two", 1, (short) 1))).all());
        settle(Map.of(member, 2));
        World.get(world.admin().deleteTopics(List.of(topic)).all());
        settle(Map.of(member, 1));
        return null;
    }

    private static Object manyMembers(World world, List<String> none) throws Exception {
        String topic = world.topic(20);
        String group = world.unique("group");
        Map<Member, Integer> members = new java.util.LinkedHashMap<>();
        for (int i = 0; i < 10; i++) {
            members.put(new Member(world, group, topic), 2);
        }
        settle(members);
        return null;
    }
}
