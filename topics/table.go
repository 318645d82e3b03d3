// SPDX-License-Identifier: Apache-2.0

package topics

import "slices"

// Owner says which side may write a topic. Every topic of a node's tree has
// exactly one, so that two writers can never disagree about one value.
type Owner uint8

// The owners of a topic.
const (
	OwnerNone  Owner = iota // nobody: passed on, never stored
	OwnerCloud              // written in the cloud, replicated to the node ("down")
	OwnerEdge               // written on the node, replicated to the cloud ("up")
	OwnerHub                // written by the hub's broker itself, not replicated
)

// String is the word that the public documents use.
func (o Owner) String() string {
	return [...]string{"none", "cloud", "edge", "hub"}[o&3]
}

// Role is what an authenticated client may be.
type Role string

// The roles of TOPICS.md. Hub stands for the hub itself and is never given to a client. A controller is a client of the
// hub's API alone: no row of the contract names it.
const (
	RoleHub        Role = "hub"
	RoleNode       Role = "node"
	RoleMapper     Role = "mapper"
	RoleOperator   Role = "operator"
	RoleViewer     Role = "viewer"
	RoleController Role = "controller"
	// RoleEnrollee is a node that asks the hub for its first certificate, and may do nothing else.
	RoleEnrollee Role = "enrollee"
	// RoleEnroller is a program of hosts that are no nodes yet: it makes EnrollmentRequests at the hub's API, reads those that it made, and
	// may do nothing else.
	RoleEnroller Role = "enroller"
	// RoleFollower is a program that copies the hub's log to another machine, and may do nothing else.
	RoleFollower Role = "follower"
	// RoleAgent is the program that changes a node's host as its spec says.
	RoleAgent Role = "agent"
	// RoleDiscoverer is a program of a node that looks for what Configurations ask for, and publishes what it finds.
	RoleDiscoverer Role = "discoverer"
)

// Kind is the meaning of a topic, whatever the names in it.
type Kind uint8

// The kinds of topic below v1/nodes/{node}/.
const (
	KindNone Kind = iota
	KindState
	KindSpec
	KindSpecPart
	KindMembership
	KindMembershipPart
	KindDevice
	KindDevicePart
	KindDesired
	KindReported
	KindRefused
	KindOverride
	KindConflict
	KindDeviceState
	KindProblem
	KindReadProblem
	KindAlarms
	KindSecret
	KindSecretPart
	KindAgent
	KindAgentState
	KindDiscovererState
	KindUpgrade
	KindUpgradeStatus
	KindDiscovery
	KindDiscoverySecret
	KindDiscoveryHandler
	KindInstance
	KindMapperState
	KindMapperProtocols
	KindMapperSettings
	KindStatus
	KindTelemetry
	KindEvents
	KindCommand
	KindAnswer
	KindGet
	KindHistory
	KindDesiredAll
	KindReportedAll
	KindBridge
	KindRuleSource
	KindRuleRequest
	KindRuleAnswer
	KindSyncUp
	KindSyncDown
	KindParts
	KindClock
	KindEnroll
	KindEnrolled
	KindBlobGet
	KindBlobAnswer
	KindHistoryCopy
	KindHistoryWanted
)

// Topic is one row of the contract.
type Topic struct {
	Kind    Kind
	Pattern string // below v1/nodes/{node}/; {name} is one level, a trailing # is the rest
	Owner   Owner
	QoS     byte   // the quality of service that the bus itself uses
	Retain  bool   // part of the state; false: a stream, a request, or the link
	Payload string // type of the payload, as the AsyncAPI documents name it
	// Who may publish to and subscribe to it. On the hub the node role means
	// the node's core; mappers exist on the node's broker only.
	Publish, Subscribe []Role
	Doc                string
}

var (
	noRoles          = []Role(nil)
	watcherRoles     = []Role{RoleOperator, RoleViewer, RoleMapper}
	peopleRoles      = []Role{RoleOperator, RoleViewer}
	agentReaderRoles = []Role{RoleOperator, RoleViewer, RoleAgent}
	agentRoles       = []Role{RoleAgent}

	discovererRoles       = []Role{RoleDiscoverer}
	discovererReaderRoles = []Role{RoleOperator, RoleViewer, RoleDiscoverer}
	instanceReaderRoles   = []Role{RoleOperator, RoleViewer, RoleMapper, RoleDiscoverer}
)

// contractTable is the contract. ACLs, golden files and generated documents derive from it.
var contractTable = [...]Topic{
	{KindState, "state", OwnerHub, 1, true, "PresenceState", noRoles, peopleRoles, "online or offline, as the hub's broker sees the node's connection"},
	{KindSpec, "spec", OwnerCloud, 1, true, "NodeSpec", noRoles, agentReaderRoles, "rendered specification of the node"},
	{KindSpecPart, "spec/parts/{part}", OwnerCloud, 1, true, "Part", noRoles, agentReaderRoles, "one part of a specification too large for one value"},
	{KindSecret, "secrets/{secret}", OwnerCloud, 1, true, "SecretValues", noRoles, agentRoles, "the values of a Secret that the specification refers to, by its namespace and name: default.wifi"},
	{KindSecretPart, "secrets/{secret}/parts/{part}", OwnerCloud, 1, true, "Part", noRoles, agentRoles, "one part of a Secret too large for one value"},
	{KindAgent, "agent", OwnerEdge, 1, true, "AgentReport", agentRoles, peopleRoles, "what the node's agent has applied, and what it sees of the host"},
	{KindAgentState, "agent/state", OwnerEdge, 1, true, "PresenceState", agentRoles, peopleRoles, "the agent's presence: online, or offline as published by its will"},
	{KindDiscovererState, "discoverer/state", OwnerEdge, 1, true, "PresenceState", discovererRoles, peopleRoles, "edgediscovery's presence: online, or offline as published by its will"},
	{KindMembership, "membership", OwnerCloud, 1, true, "Membership", noRoles, watcherRoles, "the devices that belong to the node, and the node's labels"},
	{KindMembershipPart, "membership/parts/{part}", OwnerCloud, 1, true, "Part", noRoles, watcherRoles, "one part of a membership too large for one value"},
	{KindDevice, "devices/{device}", OwnerCloud, 1, true, "Bundle", noRoles, watcherRoles, "the whole Device with its model"},
	{KindDevicePart, "devices/{device}/parts/{part}", OwnerCloud, 1, true, "Part", noRoles, watcherRoles, "one part of a Device too large for one value"},
	{KindDesired, "devices/{device}/desired/{property}", OwnerCloud, 1, true, "Value", []Role{RoleOperator}, watcherRoles, "desired value; on the node's broker the value in force"},
	{KindReported, "devices/{device}/reported/{property}", OwnerEdge, 1, true, "Value", []Role{RoleMapper}, watcherRoles, "value that the mapper last read"},
	{KindRefused, "devices/{device}/refused/{property}", OwnerEdge, 1, true, "Refusal", []Role{RoleMapper}, watcherRoles, "why a desired value was not applied"},
	{KindOverride, "devices/{device}/override/{property}", OwnerEdge, 1, true, "Value", noRoles, watcherRoles, "desired value that was set on the node"},
	{KindConflict, "devices/{device}/conflict/{property}", OwnerEdge, 1, true, "Conflict", noRoles, watcherRoles, "an override that conflicts with a newer desired value: both values, and which one is in force"},
	{KindDeviceState, "devices/{device}/state", OwnerEdge, 1, true, "DeviceState", []Role{RoleMapper}, watcherRoles, "online, offline or unknown, from the device's mapper"},
	{KindProblem, "devices/{device}/problem", OwnerEdge, 1, true, "Problem", []Role{RoleMapper}, watcherRoles, "why the device is not online, or what else is wrong with it, from its mapper"},
	{KindReadProblem, "devices/{device}/problem/{property}", OwnerEdge, 1, true, "Problem", []Role{RoleMapper}, watcherRoles, "why the property can't be read, from the device's mapper"},
	{KindAlarms, "devices/{device}/alarms/{property}", OwnerEdge, 1, true, "Alarms", noRoles, watcherRoles, "the alarms of the property that are raised"},
	{KindUpgrade, "upgrade", OwnerCloud, 1, true, "UpgradeOrder", noRoles, agentReaderRoles, "the upgrade that the node is to make"},
	{KindUpgradeStatus, "upgrade/status", OwnerEdge, 1, true, "UpgradeReport", agentRoles, peopleRoles, "progress and result of the upgrade"},
	{KindDiscovery, "discovery/{configuration}", OwnerCloud, 1, true, "DiscoveryRequest", noRoles, discovererReaderRoles, "what the node is to discover"},
	{KindDiscoverySecret, "secrets/discovery/{configuration}", OwnerCloud, 1, true, "SecretValues", noRoles, discovererRoles, "the values of Secrets and ConfigMaps that the Configuration's discoveryProperties refer to, by the properties' names"},
	{KindDiscoveryHandler, "discovery/{configuration}/handler", OwnerEdge, 1, true, "HandlerReport", discovererRoles, discovererReaderRoles, "whether the node has the Configuration's discovery handler, and whether that accepts the details"},
	{KindInstance, "discovery/{configuration}/instances/{instance}", OwnerEdge, 1, true, "DiscoveredDevice", discovererRoles, instanceReaderRoles, "a device that was discovered"},
	{KindMapperState, "mappers/{mapper}/state", OwnerEdge, 1, true, "PresenceState", []Role{RoleMapper}, watcherRoles, "a mapper's presence: online, or offline as published by its will"},
	{KindMapperProtocols, "mappers/{mapper}/protocols", OwnerEdge, 1, true, "Protocols", []Role{RoleMapper}, watcherRoles, "the protocols that a mapper speaks"},
	{KindMapperSettings, "mappers/{mapper}/settings", OwnerEdge, 1, true, "ProtocolSettings", []Role{RoleMapper}, watcherRoles, "the settings that a mapper takes for its devices"},
	{KindStatus, "status", OwnerEdge, 1, true, "NodeStatus", noRoles, agentReaderRoles, "system information, conditions, versions"},
	{KindTelemetry, "devices/{device}/telemetry/#", OwnerEdge, 1, false, "bytes", []Role{RoleMapper, RoleNode}, watcherRoles, "stream: stored and forwarded, not retained"},
	{KindEvents, "devices/{device}/events/#", OwnerEdge, 1, false, "bytes", []Role{RoleMapper, RoleNode}, watcherRoles, "stream: stored and forwarded, not retained"},
	{KindCommand, "devices/{device}/commands/{name}", OwnerNone, 0, false, "bytes", []Role{RoleOperator}, []Role{RoleOperator, RoleMapper, RoleNode}, "a command: answered on its response topic, never stored"},
	{KindAnswer, "devices/{device}/answers/{call}", OwnerNone, 0, false, "bytes", []Role{RoleMapper, RoleNode}, noRoles, "the response topic of a forwarded command, on which the executing client answers"},
	{KindGet, "devices/{device}/get", OwnerNone, 1, false, "empty", []Role{RoleOperator, RoleMapper}, noRoles, "requests the whole twin; the answer is sent to the response topic"},
	{KindHistory, "devices/{device}/history", OwnerNone, 1, false, "HistoryRequest", []Role{RoleOperator, RoleMapper}, noRoles, "requests what a property was; the answer, a HistoryAnswer, is sent to the response topic"},
	{KindDesiredAll, "devices/{device}/desired", OwnerCloud, 1, false, "Values", []Role{RoleOperator}, noRoles, "several desired values in one commit; null clears a value"},
	{KindReportedAll, "devices/{device}/reported", OwnerEdge, 1, false, "Values", []Role{RoleMapper}, noRoles, "several reported values in one commit; null clears a value"},
	{KindBridge, "bridge/#", OwnerNone, 1, false, "bytes", []Role{RoleNode}, peopleRoles, "users' own topics that bridge rules and Rules send from the node"},
	{KindRuleSource, "rules/{rule}", OwnerCloud, 1, true, "RuleSource", noRoles, peopleRoles, "the topics of the node's broker whose messages a Rule has it forward to the hub, by the Rule's namespace and name: default.my-rule"},
	{KindRuleRequest, "rules/requests", OwnerNone, 1, false, "bytes", []Role{RoleHub}, []Role{RoleNode}, "what a Rule has the node do: publish a message on its broker, or send a request to a service of its host"},
	{KindRuleAnswer, "rules/answers/{request}", OwnerNone, 1, false, "bytes", []Role{RoleNode}, []Role{RoleHub}, "the response topic of such requests"},
	{KindSyncUp, "sync/up", OwnerNone, 1, false, "Link", []Role{RoleNode}, []Role{RoleHub}, "the link: messages from the core"},
	{KindSyncDown, "sync/down", OwnerNone, 1, false, "Link", []Role{RoleHub}, []Role{RoleNode}, "the link: messages from the hub"},
	{KindParts, "sync/parts", OwnerNone, 1, false, "MessagePart", []Role{RoleNode}, []Role{RoleHub}, "the link: large messages in parts, either way"},
	{KindClock, "sync/clock", OwnerNone, 0, false, "Clock", []Role{RoleNode}, []Role{RoleHub}, "the core's clock, in which the hub expresses the deadlines of commands"},
	{KindEnroll, "enroll/{request}", OwnerNone, 1, false, "JoinRequest", []Role{RoleEnrollee, RoleNode}, []Role{RoleHub}, "requests a certificate from the hub: the first one of a new node, or a renewal"},
	{KindEnrolled, "enroll/{request}/answer", OwnerNone, 1, false, "JoinAnswer", []Role{RoleHub}, []Role{RoleEnrollee, RoleNode}, "the hub's answer: a certificate, a refusal, or that the request waits for approval"},
	{KindBlobGet, "blobs/get", OwnerNone, 1, false, "BlobRequest", []Role{RoleNode, RoleAgent}, []Role{RoleHub}, "requests a blob by its digest: the agent requests all of it from the core, the core a range from the hub"},
	{KindBlobAnswer, "blobs/answers/{request}", OwnerNone, 0, false, "BlobAnswer", []Role{RoleHub}, []Role{RoleNode, RoleAgent}, "a response topic of such requests; to the core the payload is the content"},
	{KindHistoryCopy, "history/copy", OwnerNone, 1, false, "HistoryPart", []Role{RoleNode}, []Role{RoleHub}, "a part of the node's history, for the hub's copy of it"},
	{KindHistoryWanted, "history/answers/{request}", OwnerNone, 0, false, "HistoryWanted", []Role{RoleHub}, []Role{RoleNode}, "the response topic of such parts: which part the hub wants next"},
}

// Table returns the contract: every topic below v1/nodes/{node}/.
func Table() []Topic { return slices.Clone(contractTable[:]) }

// Row returns the contract's row of a kind.
func (k Kind) Row() Topic { return keyShapes[k].row }

// Owner returns who writes topics of this kind.
func (k Kind) Owner() Owner { return k.Row().Owner }

// A command's answer says by two user properties how it went: a word for programs,
// and for people, unless it went well, a sentence.
const (
	PropCode  = "code"
	PropError = "error"
)

// AnswerCode is how a command ended. A mapper may have words of its own besides these.
type AnswerCode string

// The codes, and what each says of whether the command was executed.
const (
	CodeOK            AnswerCode = "OK"            // it was
	CodeRefused       AnswerCode = "Refused"       // it was not: no such device or command, or one that can't be
	CodeBusy          AnswerCode = "Busy"          // it was not: too many are under way
	CodeNodeOffline   AnswerCode = "NodeOffline"   // it was not: the node isn't connected
	CodeMapperOffline AnswerCode = "MapperOffline" // it was not: no mapper on the node has subscribed to the device's commands
	CodeDeviceOffline AnswerCode = "DeviceOffline" // it was not: the mapper can't reach the device
	CodeFailed        AnswerCode = "Failed"        // it was begun
	CodeLost          AnswerCode = "Lost"          // unknown: the connection ended before the answer came
	CodeExpired       AnswerCode = "Expired"       // unknown: no answer came in time
)

// AnswerCodes are the codes that the bus itself uses.
func AnswerCodes() []AnswerCode {
	return []AnswerCode{CodeOK, CodeRefused, CodeBusy, CodeNodeOffline, CodeMapperOffline, CodeDeviceOffline, CodeFailed, CodeLost, CodeExpired}
}
