#!/usr/bin/python3
"""Reads a topic with confluent-kafka: a line of JSON for each record.

Usage: read_topic.py BROKERS TOPIC

Bytes are hexadecimal, null is null; headers are [[name, value], ...] in their
order.  From the beginning of each partition to its present end.
"""

import json
import sys

from confluent_kafka import Consumer, TopicPartition, TIMESTAMP_CREATE_TIME


def hex_or_none(data):
    return None if data is None else bytes(data).hex()


def main(brokers, topic):
    consumer = Consumer({'bootstrap.servers': brokers, 'group.id': 'python', 'enable.auto.commit': False,
                         'check.crcs': True, 'fetch.wait.max.ms': 10})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    left = 0
    start = []
    for partition in partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        left += high - low
        start.append(TopicPartition(topic, partition, low))
    consumer.assign(start)
    while left > 0:
        message = consumer.poll(30)
        if message is None:
            sys.exit('no record within 30 s')
        if message.error():
            sys.exit(str(message.error()))
        kind, timestamp = message.timestamp()
        print(json.dumps({
            'partition': message.partition(), 'offset': message.offset(),
            'timestamp': timestamp, 'create_time': kind == TIMESTAMP_CREATE_TIME,
            'key': hex_or_none(message.key()), 'value': hex_or_none(message.value()),
            'headers': [[name.encode().hex(), hex_or_none(value)] for name, value in message.headers() or []]}))
        left -= 1
    consumer.close()


if __name__ == '__main__':
    main(*sys.argv[1:])
