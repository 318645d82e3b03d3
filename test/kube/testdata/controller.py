# What a controller in Python does: it watches, finalizes an object that owns another, writes Events, and takes all away again.
import sys

from kubernetes import client, watch

configuration = client.Configuration()
configuration.host = sys.argv[1]
api = client.ApiClient(configuration)
objects, core, events = client.CustomObjectsApi(api), client.CoreV1Api(api), client.EventsV1Api(api)
devices = ("edgebus.io", "v1alpha1", "default", "devices")

client.VersionApi(api).get_code()
made = objects.create_namespaced_custom_object(*devices, body={
    "apiVersion": "edgebus.io/v1alpha1", "kind": "Device",
    "metadata": {"name": "lamp", "finalizers": ["example.com/controller"]},
    "spec": {"deviceModelRef": {"name": "dimmable"}, "protocol": {"type": "modbus"}},
})
owner = client.V1OwnerReference(api_version=made["apiVersion"], kind=made["kind"], name="lamp", uid=made["metadata"]["uid"])
core.create_namespaced_config_map("default", client.V1ConfigMap(metadata=client.V1ObjectMeta(name="lamp", owner_references=[owner])))
core.create_namespaced_event("default", client.CoreV1Event(
    metadata=client.V1ObjectMeta(name="lamp.1"), reason="Made", message="its ConfigMap is made",
    involved_object=client.V1ObjectReference(kind="Device", name="lamp", namespace="default", uid=owner.uid)))
assert "Made" in [e.reason for e in events.list_namespaced_event("default").items]

objects.delete_namespaced_custom_object(*devices, "lamp")
seen = []
for event in watch.Watch().stream(objects.list_namespaced_custom_object, *devices, timeout_seconds=60):
    seen.append(event["type"])
    if event["type"] == "DELETED":
        break
    if "deletionTimestamp" in event["object"]["metadata"] and event["object"]["metadata"].get("finalizers"):
        # Its owner is ending, so the hub may have deleted the ConfigMap already; and a change of the status comes as one more event.
        for end in (lambda: core.delete_namespaced_config_map("lamp", "default"),
                    lambda: objects.patch_namespaced_custom_object(*devices, "lamp", {"metadata": {"finalizers": None}})):
            try:
                end()
            except client.exceptions.ApiException as e:
                assert e.status == 404, e
assert seen[0] == "ADDED" and seen[-1] == "DELETED", seen
assert not core.list_namespaced_config_map("default").items
