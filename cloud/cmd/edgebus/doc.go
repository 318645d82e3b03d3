// Command edgebus is for people: it gets, applies, watches and deletes the hub's objects, sets and
// shows devices' values, shows a node's tree, says what is wrong with its link, and runs a
// demonstration of the whole bus on one machine.
//
// It never does what a broker or the API could not be asked by other means: it is
// a client of both, and links neither hub nor core.
//
// Its files:
//
//	main.go      the table of commands, and exit codes
//	hub.go       how a command finds the hub: flags, and completion of kinds, names and contexts
//	contexts.go  context …, kubeconfig: which hubs there are, and who asks
//	get.go       get, watch, kinds, describe
//	apply.go     apply, delete, export, and the manifests that they read
//	twin.go      twin …, call: a device's values and commands
//	tree.go      tree: a node's topics, live
//	doctor.go    doctor: asks hub, core and brokers; diagnose.go draws the conclusions
//	mqtt.go      pub, sub, and session …: MQTT messages and sessions
//	files.go     check, backup, restore, passwd, new-mapper: files of this machine
//	demo.go      demo, and its screen; processes.go runs the programs
//	output.go    tables, documents and colours
package main
