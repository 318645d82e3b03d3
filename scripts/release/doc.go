// SPDX-License-Identifier: Apache-2.0

// Command release makes what users install, from the sources and with nothing but Go:
//
//	release packages   deb and rpm packages
//	release images     container images, as OCI layouts and as Docker's tarballs
//	release release    packages, images, archives, SBOMs, checksums and their signature
//	release notices    the list of the modules that the programs are linked with, with their licences
//
// What it makes is the same, byte for byte, for the same commit, version and Go.
//
// # Files, in reading order
//
//	main.go       the command line
//	build.go      the programs, compiled, with their man pages
//	notices.go    licences of what is linked
//	packages.go   deb and rpm: which package has what
//	images.go     container images
//	release.go    archives, SBOMs, checksums
//	sign.go       signatures of the checksums, for minisign and for cosign
//	scripts.go    what a package does when it is installed and removed
//
// # Where to add
//
// A program of mappers/cmd has a package, a unit, a user and an image by being there. Others have a line in packages.go and images.go.
package main
