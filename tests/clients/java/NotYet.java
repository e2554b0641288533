import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.TransactionalIdAuthorizationException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** What Penstock does not have yet, and says so. */
final class NotYet {
    static void register(Map<String, Driver.Scenario> scenarios) {
        scenarios.put("not-yet-transactions", NotYet::transactions);
        scenarios.put("not-yet-consumer-protocol", NotYet::consumerProtocol);
    }

    private static Object transactions(World world, List<String> none) throws Exception {
        var producer = world.producer("transactional.id", "orders");
        World.refused(TransactionalIdAuthorizationException.class, () -> {
            producer.initTransactions();
            return null;
        });
        return null;
    }

    /** KIP-848, for those who ask for it. */
    private static Object consumerProtocol(World world, List<String> none) throws Exception {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", world.bootstrap, "group.id", world.unique("group"), "group.protocol", "consumer");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(world.topic()));
            World.refused(UnsupportedVersionException.class, () -> world.read(consumer, 1));
        }
        return null;
    }
}
