// Command edgebus is the command line for people: it shows, applies, watches and deletes the hub's objects, shows and sets
// devices' values, shows a node's topics, finds out what is wrong with a node, and runs a demonstration of the whole bus.
//
// It never does what couldn't be done with the API or an MQTT client: it links neither hub nor core. The commands for data
// directories run the program that the data belongs to.
//
// Its files:
//
//	main.go        the table of commands (newRoot: a new command is registered there), exit codes
//	contexts.go    which hub a command talks to, and as whom (access, place); context …, kubeconfig
//	kubeconfig.go  reading and writing kubeconfigs
//	hub.go         commands' access to the API; completion
//	mqtt.go        commands' access to brokers; pub, sub, call, session …
//	get.go         get, watch, kinds, describe
//	apply.go       apply, delete, export, and the manifests that they read
//	twin.go        twin …: a device's values
//	tree.go        tree: a node's topics, live
//	doctor.go      doctor: asks hub, core and broker; diagnose.go draws the conclusions, and asks nothing
//	files.go       check, backup, restore, passwd, new-mapper: commands for files of this machine
//	demo.go        demo, and its screen; processes.go runs its programs, system_*.go what only some systems have
//	output.go      tables, documents, colours, progress
package main
