// Reads a topic with kafkajs: a line of JSON for each record, as read_topic.py does.
//
// Usage: node read_topic.js FOLDER BROKERS TOPIC
//
// FOLDER has node_modules with kafkajs in it.  kafkajs gives headers by name, so
// values of one name keep their order and names that of their first value.

const path = require('path');
const [folder, brokers, topic] = process.argv.slice(2);
const { Kafka, logLevel } = require(path.join(path.resolve(folder), 'node_modules', 'kafkajs'));

const hex = (bytes) => (bytes === null || bytes === undefined ? null : Buffer.from(bytes).toString('hex'));

function headersOf(message) {
  return Object.entries(message.headers).flatMap(([name, values]) =>
    (Array.isArray(values) ? values : [values]).map((value) => [hex(Buffer.from(name)), hex(value)]));
}

async function main() {
  const kafka = new Kafka({ brokers: brokers.split(','), logLevel: logLevel.ERROR });
  const admin = kafka.admin();
  await admin.connect();
  const ends = await admin.fetchTopicOffsets(topic);
  await admin.disconnect();
  let left = ends.reduce((sum, { low, high }) => sum + Number(high) - Number(low), 0);
  if (left === 0) return;

  const consumer = kafka.consumer({ groupId: 'node', maxWaitTimeInMs: 10 });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        console.log(JSON.stringify({
          partition, offset: Number(message.offset), timestamp: Number(message.timestamp),
          key: hex(message.key), value: hex(message.value), headers: headersOf(message),
        }));
        left -= 1;
        if (left === 0) resolve();
      },
    });
  });
  await consumer.disconnect();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
