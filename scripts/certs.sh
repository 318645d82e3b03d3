#!/usr/bin/env bash
# certs.sh: makes a certificate authority of one's own, and certificates signed by it.
#
#   certs.sh ca DIR                        DIR/ca.pem, DIR/ca.key
#   certs.sh server DIR NAME HOST…         for a hub or a node's broker; HOST is a name or an IP address
#   certs.sh node DIR NODE                 for a node: the common name is the node's name
#   certs.sh user DIR NAME                 for a user of auth.users: the common name is the user's name
#   certs.sh renew DIR NAME                DIR/NAME.pem anew, for the same key and names
#
# Keys are readable by their owner only, and nothing that exists is overwritten.
# The CA is valid for ten years, the rest for DAYS (default 825).
set -euo pipefail

die() {
	echo "certs.sh: $*" >&2
	exit 1
}

usage() {
	sed -n "2,11s/^# \\{0,1\\}//p" "$0" >&2
	exit 2
}

# What is to be removed at the end: of what failed, everything, so that it can be tried again.
leftovers=()
trap 'rm -f ${leftovers[@]+"${leftovers[@]}"}' EXIT

# sign ARGUMENTS…: has the CA sign what openssl x509 reads.
sign() {
	[[ -f $dir/ca.key ]] || die "$dir/ca.key is missing: run certs.sh ca $dir first"
	local said # a word about success, too: shown on failure only
	said=$(openssl x509 "$@" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -set_serial "0x$(openssl rand -hex 16)" -days "${DAYS:-825}" -sha256 2>&1) ||
		die "$dir/ca.pem and its key could not sign: $said"
}

# issue NAME SUBJECT EXTENSIONS: a key, and a certificate for it signed by the CA.
issue() {
	local name=$1 subject=$2 extensions=$3
	[[ -f $dir/ca.key ]] || die "$dir/ca.key is missing: run certs.sh ca $dir first"
	[[ ! -e $dir/$name.key && ! -e $dir/$name.pem ]] || die "$dir/$name.pem or its key exists already"
	leftovers=("$dir/$name.csr" "$dir/$name.key" "$dir/$name.pem")
	openssl ecparam -name prime256v1 -genkey -noout -out "$dir/$name.key"
	openssl req -new -key "$dir/$name.key" -subj "$subject" -out "$dir/$name.csr"
	sign -req -in "$dir/$name.csr" -extfile <(printf '%s\n' "$extensions") -out "$dir/$name.pem"
	leftovers=("$dir/$name.csr")
	echo "$dir/$name.pem $dir/$name.key"
}

[[ ${DAYS:-825} =~ ^[1-9][0-9]{0,4}$ ]] || die "DAYS=$DAYS: must be a number of days, 1 at least"
(($# >= 2)) || usage
what=$1
dir=$2
shift 2
umask 077
case $what in
ca)
	(($# == 0)) || usage
	mkdir -p "$dir"
	[[ ! -e $dir/ca.key && ! -e $dir/ca.pem ]] || die "$dir/ca.pem or its key exists already"
	leftovers=("$dir/ca.key" "$dir/ca.pem")
	openssl ecparam -name prime256v1 -genkey -noout -out "$dir/ca.key"
	openssl req -x509 -new -key "$dir/ca.key" -subj "/CN=Edgebus CA" -days 3650 -sha256 \
		-addext basicConstraints=critical,CA:TRUE,pathlen:0 -addext keyUsage=critical,keyCertSign,cRLSign -out "$dir/ca.pem"
	leftovers=()
	echo "$dir/ca.pem $dir/ca.key"
	;;
server)
	(($# >= 2)) || usage
	name=$1
	shift
	[[ $name =~ ^[A-Za-z0-9._-]+$ ]] || die "$name can't be a file's name"
	names=()
	for host in "$@"; do
		if [[ $host =~ ^[0-9.]+$ || $host == *:* ]]; then
			names+=("IP:$host")
		elif [[ $host =~ ^[A-Za-z0-9.*-]+$ ]]; then
			names+=("DNS:$host")
		else
			die "$host is neither a host's name nor an address"
		fi
	done
	issue "$name" "/CN=$name" "basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectAltName=$(IFS=, && echo "${names[*]}")"
	;;
node)
	(($# == 1)) || usage
	node=$1
	[[ $node =~ ^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$ && ${#node} -le 64 ]] || die "$node is no name for a node's certificate: a-z, 0-9, - and . in between, at most 64"
	issue "$node" "/CN=$node" "basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=clientAuth
subjectAltName=DNS:$node"
	;;
user)
	(($# == 1)) || usage
	[[ $1 =~ ^[A-Za-z0-9][A-Za-z0-9._@-]*$ && ${#1} -le 64 ]] || die "$1 is no name for a user's certificate: letters, digits and . _ @ -, at most 64"
	issue "$1" "/CN=$1" "basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=clientAuth"
	;;
renew)
	(($# == 1)) || usage
	[[ $1 != ca && -f $dir/$1.pem && -f $dir/$1.key ]] || die "$dir/$1.pem or its key is missing, or is the CA's own"
	leftovers=("$dir/$1.csr" "$dir/$1.new")
	openssl x509 -x509toreq -in "$dir/$1.pem" -signkey "$dir/$1.key" -copy_extensions copyall -out "$dir/$1.csr"
	sign -req -in "$dir/$1.csr" -copy_extensions copyall -out "$dir/$1.new"
	mv -f "$dir/$1.new" "$dir/$1.pem" # at once: a program may be reading it
	echo "$dir/$1.pem"
	;;
*) usage ;;
esac
