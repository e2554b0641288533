import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownMemberIdException;
import org.apache.kafka.common.errors.UnknownTopicIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What the admin client sees and changes. */
final class Admins {
    static void register(Map<String, Driver.Scenario> scenarios) {
        scenarios.put("admin-describe-cluster", Admins::describeCluster);
        scenarios.put("admin-create-topics", Admins::createTopics);
        scenarios.put("admin-create-topics-refused", Admins::createTopicsRefused);
        scenarios.put("admin-describe-topics", Admins::describeTopics);
        scenarios.put("admin-delete-topics", Admins::deleteTopics);
        scenarios.put("admin-create-partitions", Admins::createPartitions);
        scenarios.put("admin-topic-configs", Admins::topicConfigs);
        scenarios.put("admin-broker-configs", Admins::brokerConfigs);
        scenarios.put("admin-list-offsets", Admins::listOffsets);
        scenarios.put("admin-delete-records", Admins::deleteRecords);
        scenarios.put("admin-describe-producers", Admins::describeProducers);
        scenarios.put("admin-describe-log-dirs", Admins::describeLogDirs);
        scenarios.put("admin-groups", Admins::groups);
        scenarios.put("admin-group-offsets", Admins::groupOffsets);
    }

    private static Object describeCluster(World world, List<String> none) throws Exception {
        var cluster = world.admin().describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
        var nodes = World.get(cluster.nodes());
        World.same(1, nodes.size());
        var node = nodes.iterator().next();
        World.same(world.bootstrap, node.host() + ":" + node.port());
        World.same(node, World.get(cluster.controller()));
        World.that("the cluster has an id", !World.get(cluster.clusterId()).isEmpty());
        World.that("everything is allowed", World.get(cluster.authorizedOperations()).contains(AclOperation.CREATE));
        return null;
    }

    private static Object createTopics(World world, List<String> none) throws Exception {
        String name = world.unique("java");
        var wanted = new NewTopic(name, 3, (short) 1).configs(Map.of("retention.ms", "5000"));
        World.get(world.admin().createTopics(List.of(wanted), new CreateTopicsOptions().validateOnly(true)).all());
        World.that("it was only validated", !World.get(world.admin().listTopics().names()).contains(name));

        var created = world.admin().createTopics(List.of(wanted));
        World.same(3, World.get(created.numPartitions(name)));
        World.same(1, World.get(created.replicationFactor(name)));
        World.same("5000", World.get(created.config(name)).get("retention.ms").value());
        var listed = World.get(world.admin().listTopics().namesToListings()).get(name);
        World.same(World.get(created.topicId(name)), listed.topicId());

        String byDefault = world.unique("java");
        var all = world.admin().createTopics(List.of(
            new NewTopic(byDefault, Optional.empty(), Optional.empty()),
            new NewTopic(byDefault + "-assigned", Map.of(0, List.of(0), 1, List.of(0)))));
        World.same(1, World.get(all.numPartitions(byDefault)));
        World.same(2, World.get(all.numPartitions(byDefault + "-assigned")));
        return null;
    }

    private static Object createTopicsRefused(World world, List<String> none) throws Exception {
        String there = world.topic();
        refused(world, TopicExistsException.class, new NewTopic(there, 1, (short) 1));
        refused(world, InvalidTopicException.class, new NewTopic("no/slash", 1, (short) 1));
        refused(world, InvalidTopicException.class, new NewTopic("n".repeat(250), 1, (short) 1));
        refused(world, InvalidPartitionsException.class, new NewTopic(world.unique("java"), 0, (short) 1));
        refused(world, InvalidReplicationFactorException.class, new NewTopic(world.unique("java"), 1, (short) 3));
        var unknown = new NewTopic(world.unique("java"), 1, (short) 1).configs(Map.of("no.such.setting", "1"));
        refused(world, InvalidConfigurationException.class, unknown);
        var invalid = new NewTopic(world.unique("java"), 1, (short) 1).configs(Map.of("retention.ms", "long"));
        refused(world, InvalidConfigurationException.class, invalid);
        return null;
    }

    private static void refused(World world, Class<? extends Exception> kind, NewTopic topic) throws Exception {
        World.refused(kind, () -> World.get(world.admin().createTopics(List.of(topic)).all()));
    }

    /** By DescribeTopicPartitions, in pages; by id, through Metadata. */
    private static Object describeTopics(World world, List<String> none) throws Exception {
        String large = world.topic(25);
        String small = world.topic(1);
        var options = new DescribeTopicsOptions().partitionSizeLimitPerResponse(10).includeAuthorizedOperations(true);
        var found = World.get(world.admin().describeTopics(List.of(large, small), options).allTopicNames());
        World.same(25, found.get(large).partitions().size());
        World.same(1, found.get(small).partitions().size());
        TopicDescription topic = found.get(large);
        for (int i = 0; i < 25; i++) {
            World.same(i, topic.partitions().get(i).partition());
            World.same(1, topic.partitions().get(i).isr().size());
        }
        World.that("it may be written", topic.authorizedOperations().contains(AclOperation.WRITE));
        var byId = world.admin().describeTopics(TopicCollection.ofTopicIds(List.of(topic.topicId())));
        World.same(large, World.get(byId.allTopicIds()).get(topic.topicId()).name());
        World.refused(UnknownTopicOrPartitionException.class,
            () -> World.get(world.admin().describeTopics(List.of(world.unique("none"))).allTopicNames()));
        return null;
    }

    private static Object deleteTopics(World world, List<String> none) throws Exception {
        String byName = world.topic();
        String byId = world.topic();
        var id = World.get(world.admin().describeTopics(List.of(byId)).allTopicNames()).get(byId).topicId();
        World.get(world.admin().deleteTopics(List.of(byName)).all());
        World.get(world.admin().deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
        Set<String> left = World.get(world.admin().listTopics().names());
        World.that("both are gone", !left.contains(byName) && !left.contains(byId));
        World.refused(UnknownTopicOrPartitionException.class,
            () -> World.get(world.admin().deleteTopics(List.of(byName)).all()));
        World.refused(UnknownTopicIdException.class,
            () -> World.get(world.admin().deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all()));
        return null;
    }

    private static Object createPartitions(World world, List<String> none) throws Exception {
        String topic = world.topic(2);
        World.get(world.admin().createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all());
        var described = World.get(world.admin().describeTopics(List.of(topic)).allTopicNames());
        World.same(5, described.get(topic).partitions().size());
        world.fill(topic, 4, 1);
        World.refused(InvalidPartitionsException.class,
            () -> World.get(world.admin().createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all()));
        return null;
    }

    private static Object topicConfigs(World world, List<String> none) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, world.topic());
        alter(world, resource, new AlterConfigOp(new ConfigEntry("retention.ms", "1000"), OpType.SET));
        alter(world, resource, new AlterConfigOp(new ConfigEntry("max.message.bytes", "2000"), OpType.SET));
        Config config = World.get(world.admin().describeConfigs(List.of(resource),
            new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true)).all()).get(resource);
        ConfigEntry retention = config.get("retention.ms");
        World.same("1000", retention.value());
        World.same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, retention.source());
        World.same(ConfigEntry.ConfigType.LONG, retention.type());
        World.that("it is documented", retention.documentation().length() > 10);
        World.same("log.retention.ms", retention.synonyms().get(1).name());
        World.same("2000", config.get("max.message.bytes").value());

        alter(world, resource, new AlterConfigOp(new ConfigEntry("retention.ms", null), OpType.DELETE));
        retention = World.get(world.admin().describeConfigs(List.of(resource)).all()).get(resource).get("retention.ms");
        World.same("604800000", retention.value());
        World.that("it is the default again", retention.isDefault());

        alter(world, resource, new AlterConfigOp(new ConfigEntry("cleanup.policy", "delete"), OpType.APPEND));
        World.refused(InvalidConfigurationException.class, () -> {
            alter(world, resource, new AlterConfigOp(new ConfigEntry("max.message.bytes", "-2"), OpType.SET));
            return null;
        });
        var missing = new ConfigResource(ConfigResource.Type.TOPIC, world.unique("none"));
        World.refused(UnknownTopicOrPartitionException.class,
            () -> World.get(world.admin().describeConfigs(List.of(missing)).all()));
        return null;
    }

    private static void alter(World world, ConfigResource resource, AlterConfigOp change) throws Exception {
        World.get(world.admin().incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
    }

    private static Object brokerConfigs(World world, List<String> none) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.BROKER, "0");
        Config config = World.get(world.admin().describeConfigs(List.of(resource)).all()).get(resource);
        World.same("1048588", config.get("message.max.bytes").value());
        World.same(world.bootstrap, config.get("listeners").value());
        World.that("it is read-only", config.get("listeners").isReadOnly());
        return null;
    }

    private static Object listOffsets(World world, List<String> none) throws Exception {
        String topic = world.topic();
        var at = new TopicPartition(topic, 0);
        var producer = world.producer();
        for (long timestamp : List.of(1_000L, 5_000L, 3_000L, 4_000L)) {
            producer.send(new ProducerRecord<>(topic, 0, timestamp, null, "v")).get();
        }
        World.same(0L, offset(world, at, OffsetSpec.earliest()));
        World.same(4L, offset(world, at, OffsetSpec.latest()));
        World.same(1L, offset(world, at, OffsetSpec.maxTimestamp()));
        World.same(1L, offset(world, at, OffsetSpec.forTimestamp(2_000)));
        World.same(-1L, offset(world, at, OffsetSpec.forTimestamp(6_000)));
        World.same(0L, offset(world, at, OffsetSpec.earliestLocal()));
        World.same(-1L, offset(world, at, OffsetSpec.latestTiered()));
        World.same(-1L, offset(world, at, OffsetSpec.earliestPendingUpload()));
        return null;
    }

    private static long offset(World world, TopicPartition at, OffsetSpec spec) throws Exception {
        return World.get(world.admin().listOffsets(Map.of(at, spec)).all()).get(at).offset();
    }

    private static Object deleteRecords(World world, List<String> none) throws Exception {
        String topic = world.topic();
        var at = new TopicPartition(topic, 0);
        world.fill(topic, 0, 10);
        var deleted = world.admin().deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(6)));
        World.same(6L, World.get(deleted.lowWatermarks().get(at)).lowWatermark());
        World.same(6L, offset(world, at, OffsetSpec.earliest()));
        World.same("value-6", world.read(Records.assigned(world, topic), 4).get(0).value());
        World.refused(OffsetOutOfRangeException.class,
            () -> World.get(world.admin().deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(11))).all()));
        deleted = world.admin().deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(-1))); // all there are
        World.same(10L, World.get(deleted.lowWatermarks().get(at)).lowWatermark());
        return null;
    }

    private static Object describeProducers(World world, List<String> none) throws Exception {
        String topic = world.topic();
        var at = new TopicPartition(topic, 0);
        World.same(0, producers(world, at).size());
        var first = world.producer();
        var second = world.producer();
        first.send(new ProducerRecord<>(topic, "v")).get();
        second.send(new ProducerRecord<>(topic, "v")).get();
        second.send(new ProducerRecord<>(topic, "v")).get();
        var states = producers(world, at);
        World.same(2, states.stream().map(state -> state.producerId()).collect(Collectors.toSet()).size());
        World.same(Set.of(0, 1), new HashSet<>(states.stream().map(state -> state.lastSequence()).toList()));
        World.that("no transaction is open", states.stream().allMatch(s -> s.currentTransactionStartOffset().isEmpty()));
        return null;
    }

    private static List<org.apache.kafka.clients.admin.ProducerState> producers(World world, TopicPartition at)
            throws Exception {
        return World.get(world.admin().describeProducers(List.of(at)).all()).get(at).activeProducers();
    }

    private static Object describeLogDirs(World world, List<String> none) throws Exception {
        String topic = world.topic();
        world.fill(topic, 0, 100);
        var directories = World.get(world.admin().describeLogDirs(List.of(0)).allDescriptions()).get(0);
        World.same(1, directories.size());
        var directory = directories.values().iterator().next();
        World.that("it is sound", directory.error() == null);
        World.that("its disk has a size", directory.totalBytes().getAsLong() > directory.usableBytes().getAsLong());
        var replica = directory.replicaInfos().get(new TopicPartition(topic, 0));
        World.that("100 records take room", replica.size() > 100 * 10);
        World.same(0L, replica.offsetLag());
        return null;
    }

    private static Object groups(World world, List<String> none) throws Exception {
        String topic = world.topic(2);
        String group = world.unique("group");
        var member = world.consumer("group.id", group, "client.id", "the-client");
        member.subscribe(List.of(topic));
        World.until("it is assigned", () -> {
            member.poll(World.POLL);
            return member.assignment().size() == 2;
        });
        var description = World.get(world.admin().describeConsumerGroups(List.of(group)).all()).get(group);
        World.same(GroupState.STABLE, description.groupState());
        World.same(GroupType.CLASSIC, description.type());
        World.same("range", description.partitionAssignor());
        World.same(1, description.members().size());
        var described = description.members().iterator().next();
        World.same("the-client", described.clientId());
        World.same(member.assignment(), described.assignment().topicPartitions());
        var stable = new ListGroupsOptions().inGroupStates(Set.of(GroupState.STABLE)).withTypes(Set.of(GroupType.CLASSIC));
        World.that("it is listed as stable", groupIds(world, stable).contains(group));
        var empty = new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY));
        World.that("it is not listed as empty", !groupIds(world, empty).contains(group));
        World.refused(GroupNotEmptyException.class,
            () -> World.get(world.admin().deleteConsumerGroups(List.of(group)).all()));
        member.close();
        World.until("it is empty", () -> groupIds(world, empty).contains(group));
        World.get(world.admin().deleteConsumerGroups(List.of(group)).all());
        World.that("it is gone", !groupIds(world, new ListGroupsOptions()).contains(group));
        World.refused(GroupIdNotFoundException.class,
            () -> World.get(world.admin().deleteConsumerGroups(List.of(group)).all()));
        World.refused(GroupIdNotFoundException.class,
            () -> World.get(world.admin().describeConsumerGroups(List.of(group)).all()));
        return null;
    }

    private static Set<String> groupIds(World world, ListGroupsOptions options) throws Exception {
        return World.get(world.admin().listGroups(options).all()).stream()
            .map(GroupListing::groupId).collect(Collectors.toSet());
    }

    private static Object groupOffsets(World world, List<String> none) throws Exception {
        String topic = world.topic(2);
        var zero = new TopicPartition(topic, 0);
        var one = new TopicPartition(topic, 1);
        String group = world.unique("group");
        String other = world.unique("group");
        var wanted = Map.of(zero, new OffsetAndMetadata(3, Optional.of(0), "by hand"), one, new OffsetAndMetadata(4));
        World.get(world.admin().alterConsumerGroupOffsets(group, wanted).all());
        World.get(world.admin().alterConsumerGroupOffsets(other, Map.of(one, new OffsetAndMetadata(1))).all());

        var all = World.get(world.admin().listConsumerGroupOffsets(Map.of(
            group, new ListConsumerGroupOffsetsSpec(),
            other, new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(one)))).all());
        World.same(Set.of(zero, one), all.get(group).keySet());
        World.same("by hand", all.get(group).get(zero).metadata());
        World.same(3L, all.get(group).get(zero).offset());
        World.same(1L, all.get(other).get(one).offset());

        World.get(world.admin().deleteConsumerGroupOffsets(group, Set.of(zero)).all());
        var left = World.get(world.admin().listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        World.same(Set.of(one), left.keySet());

        var member = world.consumer("group.id", group);
        member.subscribe(List.of(topic));
        World.until("it is assigned", () -> {
            member.poll(World.POLL);
            return member.assignment().size() == 2;
        });
        World.refused(UnknownMemberIdException.class,
            () -> World.get(world.admin().alterConsumerGroupOffsets(group, wanted).all()));
        World.refused(GroupSubscribedToTopicException.class,
            () -> World.get(world.admin().deleteConsumerGroupOffsets(group, Set.of(one)).partitionResult(one)));
        return null;
    }
}
