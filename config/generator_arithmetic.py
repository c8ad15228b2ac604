# arithmetic
