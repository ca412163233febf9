#!/bin/sh
# Prepares compose.yaml: makes a key, a token and a bucket, unless they exist.
#   prepare.sh SERVER_FOLDER CLIENT_FOLDER BUCKET_URL
set -eu
umask 077
server=$1 client=$2 bucket=$3

if [ ! -e "$client/token" ]; then
    [ -e "$server/server.key" ] || gemmill key new "$server/server.key"
    gemmill key show "$server/server.key" > "$client/trusted.keys"
    gemmill serve token new client --scopes read,compile > "$server/tokens" 2> "$client/said"
    sed -n 's/.*: //p' "$client/said" > "$client/token.new"
    rm "$client/said"
    mv "$client/token.new" "$client/token"
fi

# The stand-in bucket starts empty, and accepts all requests.
python - "$bucket" << 'END'
import sys, time, urllib.error, urllib.request
for attempts_left in reversed(range(30)):
    try:
        urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="PUT"), timeout=10).close()
        break
    except urllib.error.HTTPError as error:
        sys.exit(None if error.code == 409 else f"{sys.argv[1]}: {error}")  # 409: exists
    except OSError as error:
        if not attempts_left:
            sys.exit(f"{sys.argv[1]}: {error}")
        time.sleep(1)
END
