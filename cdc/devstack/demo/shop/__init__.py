r"""A shop of six services, each of which does one thing and tells the others by events. An example to read and to copy from.

    customer --HTTP--> api --> orders ==OrderPlaced, OrderPaid==> inventory ==StockReserved==> warehouse ==OrderProcessed==> live page
                                                                     \==StockRejected==> orders ==OrderRejected==> inventory, refund
    everything ==> analytics        OrderPlaced, OrderRejected, UserRegistered ==> notification

Layers, from the customer down; a file of one may import from those below it:

    api            api.py  live.py                    HTTP and WebSocket: reads requests, answers, knows no SQL
    async          saga.py  inventory.py  warehouse.py  notification.py  analytics.py   what happens after the answer
    data           data.py  desk.py                   SQL of the order service: each function is a part of somebody's transaction
    domain         domain.py  events.py               what an order is and when stock is short: values, no I/O

`==>` is an event: written by `append` in the transaction that makes it true, published by a pipeline, applied once by a
consumer. Order service and warehouse share a database and its pipeline; inventory, notification and analytics have their own,
and inventory, which has something to tell, a pipeline of its own too.

Each service is a process: `python -m cdc.devstack.demo.shop SERVICE PLACE.json`.
"""
