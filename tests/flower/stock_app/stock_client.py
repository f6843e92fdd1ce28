"""A client: it trains for one epoch and sends its parameters."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from stock_task import images_of, network

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the own pictures, all in one batch."""
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = images_of(int(context.node_config["client"]))
    optimiser = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"])
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimiser.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(labels)})
    sent = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(sent, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Say how well the broadcast does."""
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = images_of(int(context.node_config["client"]))
    right = (model(images).argmax(1) == labels).float().mean().item()
    metrics = MetricRecord({"eval_acc": right, "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
