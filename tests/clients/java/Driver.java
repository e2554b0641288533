import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Runs scenarios against a broker, one for each line of standard input, until it ends.
 *
 * A line is the scenario's name, the broker's address and the arguments, between tabs. The answer is a
 * line, too: "@ok" or "@failed", a tab, and what the scenario returned or what went wrong.
 */
public final class Driver {
    interface Scenario {
        Object run(World world, List<String> arguments) throws Exception;
    }

    private static final Map<String, Scenario> SCENARIOS = new TreeMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Records.register(SCENARIOS);
        Consuming.register(SCENARIOS);
        Groups.register(SCENARIOS);
        Admins.register(SCENARIOS);
        NotYet.register(SCENARIOS);
        SCENARIOS.put("list", (world, none) -> String.join(" ", SCENARIOS.keySet()));
        Exchange exchange = new Exchange(SCENARIOS);
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(run(List.of(line.split("\t", -1))));
            answers.flush();
        }
        exchange.close();
        System.exit(0); // whatever a client left running
    }

    private static String run(List<String> words) {
        System.err.println("== " + words.get(0));
        try (World world = new World(words.get(1))) {
            Object outcome = SCENARIOS.get(words.get(0)).run(world, words.subList(2, words.size()));
            return "@ok\t" + (outcome == null ? "" : outcome);
        } catch (Throwable failure) {
            failure.printStackTrace();
            return "@failed\t" + describe(failure);
        }
    }

    private static String describe(Throwable failure) {
        var text = new StringBuilder();
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            text.append(cause).append(" at ").append(place(cause)).append("; ");
        }
        return text.toString().replace('\n', ' ').replace('\t', ' ');
    }

    /** The line of a scenario that failed. */
    private static String place(Throwable failure) {
        for (StackTraceElement element : failure.getStackTrace()) {
            if (!element.getClassName().contains(".")) {
                return element.toString();
            }
        }
        return "the client";
    }
}
