// Command release makes what users install, from the sources and with nothing but Go:
//
//	release packages   deb and rpm packages
//
// # Files, in reading order
//
//	main.go       the command line
//	build.go      the programs, compiled, with their man pages
//	packages.go   deb and rpm: which package has what
//	scripts.go    what a package does when it is installed and removed
//
// # Where to add
//
// A program of mappers/cmd has a package, a unit and a user by being there. Others have a line in packages.go.
package main
