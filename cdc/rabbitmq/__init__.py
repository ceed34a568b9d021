"""From bytes to messages that RabbitMQ has confirmed: the publisher and the position's queue, over `pika` (extra `rabbitmq`)."""
