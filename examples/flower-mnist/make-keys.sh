#!/usr/bin/env bash
# Certificates for the SuperLink and a key pair for each SuperNode, in keys/. ./make-keys.sh [HOST] [NODES]
set -euo pipefail
host=${1:-127.0.0.1} nodes=${2:-3}
[[ $host =~ ^[0-9.]+$ ]] && name="IP:$host" || name="DNS:$host"
if [[ -e keys ]]; then
  echo "keys: expected no such folder yet, got one: remove it to make new keys" >&2
  exit 2
fi
umask 077
mkdir keys && cd keys
# an authority of one's own, which nodes trust
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 365 -subj "/CN=flower-mnist CA" \
  -keyout ca.key -out ca.crt
# the SuperLink's certificate, signed by it; Flower's own processes reach the SuperLink on loopback
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj "/CN=$host" -keyout server.key -out server.csr
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out server.crt \
  -extfile <(echo "subjectAltName=$name,IP:127.0.0.1,DNS:localhost")
# a key pair for each node: the .pub is registered with the SuperLink, the other never leaves the node
for ((node = 0; node < nodes; node++)); do
  ssh-keygen -q -t ecdsa -b 384 -N "" -C "node-$node" -f "node-$node"
done
