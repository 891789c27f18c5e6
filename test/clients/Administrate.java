/*
 * Administrates a cluster: reads a command a line, answers each with a line, "ok"
 * or what went wrong.  One process for many commands, since to start one takes
 * longer than all they do.
 *
 * Usage: java -cp JARS Administrate.java BROKERS
 *
 *	create TOPIC PARTITIONS REPLICAS [NAME=VALUE]...
 *	delete TOPIC
 *	set TOPIC NAME=VALUE...
 *	deny OPERATION TOPIC		takes a right from everybody; on all topics (*), or on
 *								the cluster (kafka-cluster)
 *	allow OPERATION TOPIC		gives it back
 *	partitions TOPIC COUNT
 *	truncate TOPIC				deletes all records
 */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;

class Administrate {
    static Map<String, String> settings(List<String> words) {
        Map<String, String> settings = new HashMap<>();
        for (String word : words) {
            int equals = word.indexOf('=');
            settings.put(word.substring(0, equals), word.substring(equals + 1));
        }
        return settings;
    }

    static AclBinding rule(String operation, String name, AclPermissionType type) {
        ResourceType resource = name.equals("kafka-cluster") ? ResourceType.CLUSTER : ResourceType.TOPIC;
        return new AclBinding(
            new ResourcePattern(resource, name, PatternType.LITERAL),
            new AccessControlEntry("User:*", "*", AclOperation.fromString(operation), type));
    }

    /* A right that is taken; the others stay, also where one rule would take them all. */
    static List<AclBinding> denial(String operation, String name) {
        AclBinding denied = rule(operation, name, AclPermissionType.DENY);
        if (name.equals("kafka-cluster") || name.equals("*"))
            return List.of(rule("ALL", name, AclPermissionType.ALLOW), denied);
        return List.of(denied);
    }

    static void set(Admin admin, String topic, Map<String, String> settings) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        settings.forEach((name, value) ->
            changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, topic), changes)).all().get();
    }

    static void truncate(Admin admin, String topic) throws Exception {
        Map<TopicPartition, RecordsToDelete> ends = new HashMap<>();
        admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().forEach(partition ->
            ends.put(new TopicPartition(topic, partition.partition()), RecordsToDelete.beforeOffset(-1)));
        admin.deleteRecords(ends).all().get();
    }

    static void run(Admin admin, List<String> words) throws Exception {
        String name = words.get(1);
        switch (words.get(0)) {
            case "create" -> admin.createTopics(List.of(
                new NewTopic(name, Integer.parseInt(words.get(2)), Short.parseShort(words.get(3)))
                    .configs(settings(words.subList(4, words.size()))))).all().get();
            case "delete" -> admin.deleteTopics(List.of(name)).all().get();
            case "set" -> set(admin, name, settings(words.subList(2, words.size())));
            case "deny" -> admin.createAcls(denial(name, words.get(2))).all().get();
            case "allow" -> admin.deleteAcls(
                denial(name, words.get(2)).stream().map(AclBinding::toFilter).toList()).all().get();
            case "partitions" -> admin.createPartitions(
                Map.of(name, NewPartitions.increaseTo(Integer.parseInt(words.get(2))))).all().get();
            case "truncate" -> truncate(admin, name);
            default -> throw new IllegalArgumentException("no such command");
        }
    }

    public static void main(String[] args) throws Exception {
        var commands = new BufferedReader(new InputStreamReader(System.in));
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0],
            "reconnect.backoff.ms", "50", "reconnect.backoff.max.ms", "200", "retry.backoff.ms", "50");
        try (Admin admin = Admin.create(settings)) {
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                try {
                    run(admin, Arrays.asList(line.split(" ")));
                    System.out.println("ok");
                } catch (Exception e) {
                    System.out.println(e);
                }
            }
        }
    }
}
